"""Holds the node's mount (and user) namespace: mounts for the runner, and cleans up however the runner ends.

`python -m e2e.onebox.holder DIR` reads one JSON request a line on stdin and answers each with a line. When stdin ends
(the runner has closed it, or was killed) it removes DIR and ends; with it go all the node's mounts.
"""

import json
import shutil
import signal
import sys
from pathlib import Path

from e2e.onebox import linux


def serve(request: dict[str, str]) -> None:
    """One request: tmpfs (path, size, mode), unmount (path) or directory (path, mode; what is there stays)."""
    path = Path(request["path"])
    match request["do"]:
        case "tmpfs":
            path.mkdir(parents=True, exist_ok=True)
            options = f"size={request['size']},mode={request['mode']}"
            linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        case "unmount":
            linux.unmount(path)
        case "directory":
            if not path.exists():
                path.mkdir()
                path.chmod(int(request["mode"], 8))
        case unknown:
            raise ValueError(f"unknown request {unknown}")


def main() -> None:
    """Entry of the program."""
    directory = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the end of stdin is the end
    linux.make_private()
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            try:
                serve(json.loads(line))
                print("ok", flush=True)
            except (OSError, ValueError, KeyError) as error:
                print(json.dumps(str(error)), flush=True)
    finally:
        for mount in sorted(_mounts_below(directory), reverse=True):
            linux.unmount(mount)
        shutil.rmtree(directory, ignore_errors=True)


def _mounts_below(directory: Path) -> list[Path]:
    points = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if directory in point.parents]


if __name__ == "__main__":
    main()
