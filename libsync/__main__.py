"""Command line of libsync: `python -m libsync [--once | --check | --uninstall]`."""

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType

from libsync import status as reports
from libsync.config import Settings, parse
from libsync.errors import RefusalError
from libsync.install import Release, differences, install, load_release
from libsync.uninstall import uninstall


def main() -> int:
    """Run as the flags say; the exit status (0 done, 1 refused)."""
    settings = parse(sys.argv[1:])
    # A lease that is_in_use() takes may be broken by a program that opens the file in that instant.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    os.umask(0o022)
    try:
        if settings.mode == "uninstall":
            for directory in uninstall(settings.target):
                say(f"removed {directory}")
            return 0
        if settings.mode == "check":
            return check(settings)
        if settings.mode == "once":
            return 0 if Keeper(settings).look() else 1
    except (RefusalError, OSError) as error:
        say(str(error))
        return 1
    return watch(settings)


def check(settings: Settings) -> int:
    """Say whether the node is as this release wants it."""
    release = load_release(settings.library)
    found = differences(release, settings)
    for sentence in found:
        say(sentence)
    if not found:
        say(f"all well: {release.directory(settings.target)}, version {release.identity.version}")
    return 1 if found else 0


def watch(settings: Settings) -> int:
    """Look again and again until SIGTERM or SIGINT; a refusal is told and tried again, never fatal."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    keeper = Keeper(settings)
    keeper.retract()
    while not ended.is_set():
        keeper.look()
        ended.wait(settings.interval_seconds)
    keeper.retract()
    return 0


class Keeper:
    """Keeps one node right over time: remembers what it installed, counts repairs, says each thing once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._release: Release | None = None
        self._installed = False
        self._unreported = ""  # why the last look couldn't be reported
        self._status = reports.load(settings.target)

    def look(self) -> bool:
        """Install or repair once, and report; whether all is well now."""
        try:
            if self._release is None:
                self._release = load_release(self._settings.library)
            written = install(self._release, self._settings, ours=self._installed)
        except (RefusalError, OSError) as error:
            if str(error) != self._status.refusal:
                say(f"not ready: {error}")
            self._status.ready, self._status.refusal = False, str(error)
        else:
            self._report(self._release, written)
        try:
            reports.publish(self._status, self._settings.target, self._settings.ready_file)
        except (RefusalError, OSError) as error:
            if str(error) != self._unreported:
                say(f"can't report: {error}")
            self._unreported = str(error)
            return False
        self._unreported = ""
        return self._status.ready

    def retract(self) -> None:
        """Take the ready file away: before the first look, for a killed libsync may have left one, and at the end."""
        if self._settings.ready_file is not None:
            with contextlib.suppress(OSError):  # where it can't be removed, publish() says so
                self._settings.ready_file.unlink()

    def _report(self, release: Release, written: list[str]) -> None:
        directory = release.directory(self._settings.target)
        if written:
            say(f"{'repaired' if self._installed else 'wrote'} in {directory}: {', '.join(written)}")
        if self._installed and written:
            self._status.repairs_total += 1
        if not self._status.ready:
            say(
                f"ready: {directory}, version {release.identity.version}, abi {release.identity.abi}, "
                f"{release.architecture}, sha256 {release.sha256[:16]}"
            )
        self._installed = True
        self._status.ready, self._status.refusal = True, ""
        self._status.version, self._status.abi = release.identity.version, release.identity.abi


def say(text: str) -> None:
    """One line on stderr, with the time (UTC)."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"{stamp} libsync: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
