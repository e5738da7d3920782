"""`python -m monitor`: starts the exporter as a process of its own, then becomes the reader that serves it."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from monitor import config, confine, reader
from monitor.config import Settings

log = logging.getLogger("monitor")
END_SECONDS = 5


def main(arguments: Sequence[str]) -> int:
    """Run the monitor, or one of its commands."""
    if arguments[:1] == ["top"]:
        from monitor.top import main as top  # noqa: PLC0415 (the monitor itself doesn't need it)

        return top(arguments[1:])
    settings = config.parse(arguments)
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the first process of a container has no default
    request_in, request_out = os.pipe()
    answer_in, answer_out = os.pipe()
    exporter = start_exporter(arguments, settings, (request_out, answer_in))
    os.close(request_out)
    os.close(answer_in)
    give_up_rights(settings)
    try:
        with os.fdopen(request_in, "rb") as requests, os.fdopen(answer_out, "wb") as answers:
            reader.serve(requests, answers, settings.kubelet_root, settings.proc, settings.map_by_mount)
    except (KeyboardInterrupt, SystemExit):
        # The pipes are closed by now, which ends the exporter too.
        with contextlib.suppress(subprocess.TimeoutExpired):
            exporter.wait(END_SECONDS)
        return 0
    return exporter.wait()


def start_exporter(arguments: Sequence[str], settings: Settings, ends: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start the process that serves HTTP, as the other user if one was given; it gets its ends of the pipes."""
    command = [sys.executable, "-m", "monitor.exporter", str(ends[0]), str(ends[1]), *arguments]
    if settings.user is None:
        if os.geteuid() == 0:
            log.warning("HTTP is served as root: --user 65534 would give that up")
        return subprocess.Popen(command, pass_fds=ends)
    try:
        return subprocess.Popen(command, pass_fds=ends, user=settings.user, group=settings.user, extra_groups=[])
    except PermissionError as e:
        sys.exit(f"--user {settings.user}: can't start {sys.executable} as that user: {e.strerror}")


def give_up_rights(settings: Settings) -> None:
    """Leave this process with nothing but the right to read; where it was started as somebody, it stays that one."""
    if settings.user is not None and os.geteuid() == 0:
        confine.drop_capabilities()
    confine.forbid_new_privileges()
    try:
        confine.forbid_calls()
    except (OSError, KeyError) as e:
        log.warning("system calls can't be restricted here: %s", e)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
