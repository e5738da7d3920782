"""The label without which a container on a SELinux node may not map the library (it would run uncapped)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from libsync.errors import RefusalError

ATTRIBUTE = "security.selinux"
SetAttribute = Callable[[Path, str, bytes], None]


def is_enabled(filesystems: Path = Path("/proc/filesystems")) -> bool:
    """Whether the kernel runs with SELinux: only then it registers its own file system."""
    try:
        return any(line.split()[-1:] == ["selinuxfs"] for line in filesystems.read_text().splitlines())
    except OSError:
        return False


def label(path: Path, selinux_type: str, set_attribute: SetAttribute = os.setxattr) -> None:
    """Give a file or directory the type that containers may read and map; RefusalError if it can't be had."""
    wanted = f"system_u:object_r:{selinux_type}:s0"
    try:
        set_attribute(path, ATTRIBUTE, wanted.encode() + b"\0")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP) and read_type(path) == selinux_type:
            return
        raise RefusalError(
            f"can't set the SELinux label {wanted} on {path}: {error.strerror}; "
            f"run `chcon -R -t {selinux_type} {path.parent}` on the node, or let libsync run as type spc_t"
        ) from error


def read_type(path: Path) -> str:
    """The SELinux type of a file or directory, "" if it has none."""
    try:
        fields = os.getxattr(path, ATTRIBUTE).rstrip(b"\0").decode().split(":")
    except (OSError, ValueError):
        return ""
    return fields[2] if len(fields) > 2 else ""  # noqa: PLR2004 — user:role:type:level
