"""Removes what the kernel doesn't take when a run ends: its folder and its control groups. `janitor.py FOLDER`.

A process of its own, which no signal to the run reaches: it waits until its standard input closes, as it does when the
run ends, however that ends. Processes, mounts and interfaces go with the namespaces at the same moment.
"""

import contextlib
import shutil
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SECONDS = 20


def groups(name: str) -> list[Path]:
    """The run's control groups: one for each hierarchy (v1), or one (v2)."""
    return [path for path in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if path.exists()]


def main() -> None:
    """Wait, then remove; again where a process is still about to end."""
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    end = time.monotonic() + SECONDS
    while (folder.exists() or groups(folder.name)) and time.monotonic() < end:
        for own in groups(folder.name):
            for group in (*sorted((path for path in own.rglob("*") if path.is_dir()), reverse=True), own):
                with contextlib.suppress(OSError):
                    group.rmdir()
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
