"""What libsync tells others: a file that exists while all is well, and <base>/status.json with the counts."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from libsync import files, names, node
from libsync.errors import RefusalError


@dataclass
class Status:
    """State of the node as of the last look. `repairs_total` goes on over restarts of libsync."""

    ready: bool = False
    version: str = ""
    abi: int = 0
    repairs_total: int = 0  # looks that found files of an earlier look missing or changed
    refusal: str = ""  # why it isn't ready


def load(base: Path) -> Status:
    """The status that an earlier libsync left; a fresh one if there is none that can be read."""
    try:
        fields = json.loads(files.read_regular(base / names.STATUS_FILE) or b"{}")
        return Status(repairs_total=max(0, int(fields.get("repairs_total", 0))))
    except (RefusalError, ValueError, TypeError, AttributeError):
        return Status()


def publish(status: Status, base: Path, ready_file: Path | None) -> None:
    """Write both where they changed; the ready file first. OSError, RefusalError where that can't be done.

    A base that can't be written is told by the refusal itself: no error here. Where nothing of ours lies (a wrong
    --target, perhaps) nothing is written.
    """
    if ready_file is not None:
        if status.ready:
            ready_file.parent.mkdir(parents=True, exist_ok=True)
            ready_file.touch()
        else:
            ready_file.unlink(missing_ok=True)
    content = (json.dumps(asdict(status), indent=1) + "\n").encode()
    path = base / names.STATUS_FILE
    try:
        if any(base.glob(names.ABI_DIRECTORY_PREFIX + "*")) and files.read_regular(path) != content:
            with node.hold_lock(base):
                files.write_atomically(path, content)
    except (RefusalError, OSError):
        if status.ready:
            raise
