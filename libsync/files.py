"""Files put in place whole or not at all.

A program that has the old file mapped keeps it: the new content comes as a new file that is renamed over the old name.
(Writing into the old one would kill every process that maps it.)
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from libsync.errors import RefusalError

TEMPORARY_PREFIX = ".libsync-"
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755


def read_regular(path: Path, limit_bytes: int = 64 << 20) -> bytes | None:
    """Content of a regular file, None if there is none; RefusalError for links, other kinds and huge files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RefusalError(f"{path} is a symbolic link, which libsync never makes: remove it") from error
        raise RefusalError(f"can't read {path}: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
        os.close(descriptor)
        raise RefusalError(f"{path} is no ordinary file of sensible size: remove it")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def digest(content: bytes) -> str:
    """SHA-256 of the content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes, prepare: Callable[[Path], None] | None = None) -> None:
    """Put the content at the path durably: after this it is there whole, after an error the old state is.

    `prepare` may still change the temporary file's attributes or try it out before it gets its name. The caller holds
    the base directory's lock: the temporary name is always the same, so what a killed libsync left goes with the next.
    """
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name}"
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, FILE_MODE)  # whatever the umask: containers of any uid read it
            os.fsync(descriptor)
        if prepare is not None:
            prepare(temporary)
        temporary.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise RefusalError(f"can't write {path}: {_explain(error)}") from error
    finally:
        with contextlib.suppress(OSError):  # on a read-only file system even an absent name can't be removed
            temporary.unlink()


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files of a libsync that was killed. The caller holds the base directory's lock."""
    for path in directory.glob(TEMPORARY_PREFIX + "*"):
        path.unlink(missing_ok=True)


def _explain(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; nothing was left half-written: make room on the node's disk"
    if error.errno == errno.EROFS:
        return f"{error.strerror}; choose another --target or the --preset of this kind of node"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}; libsync has to own its directory (run it as root)"
    return error.strerror or str(error)
