"""Removes our files from the node, when asked, and only where no process uses the library."""

import contextlib
import re
from pathlib import Path

from libsync import files, names, node
from libsync.errors import RefusalError

_OUR_DIRECTORY = re.compile(re.escape(names.ABI_DIRECTORY_PREFIX) + r"[0-9]+")


def uninstall(base: Path) -> list[Path]:
    """Remove each abi's directory that nothing uses; the removed ones. RefusalError if one had to stay.

    Only processes can be seen. A pod that was given the directory and runs none with the library just now (it waits
    for a restart, or all its programs are static) would start its next program without it: drain the node first.
    """
    node.refuse_link(base)
    if not base.is_dir():
        return []
    removed, used = [], []
    with node.hold_lock(base):
        for directory in sorted(path for path in base.iterdir() if _OUR_DIRECTORY.fullmatch(path.name)):
            node.refuse_link(directory)
            if node.is_in_use(directory / names.LIBRARY_FILE):
                used.append(directory)
                continue
            if (directory / names.LIBRARY_FILE).exists() and not (directory / names.MANIFEST_FILE).exists():
                raise RefusalError(f"{directory} isn't ours (no manifest speaks for it) and stays")
            files.remove_leftovers(directory)
            # The preload file first: no new pod can mount it while the library goes.
            for name in (names.PRELOAD_FILE, names.LIBRARY_FILE, names.MANIFEST_FILE):
                (directory / name).unlink(missing_ok=True)
            try:
                directory.rmdir()
            except OSError as error:
                raise RefusalError(f"{directory} holds files that aren't ours and stays: {error.strerror}") from error
            removed.append(directory)
        if used:
            raise RefusalError(
                f"{', '.join(map(str, used))}: processes use the library (or this file system can't tell); "
                "end the pods that have a share, then try again"
            )
        (base / names.STATUS_FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a mount point, or a directory that holds more than ours, stays
        base.rmdir()
    return removed
