"""Whether the node lets us keep our files in the base directory: what is asked before anything is written."""

import contextlib
import errno
import fcntl
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

from libsync import names
from libsync.errors import RefusalError
from libsync.files import DIRECTORY_MODE, TEMPORARY_PREFIX

READABLE_BY_ALL = 0o555
# `uname -m` says arm64 on some systems for what the kernel calls aarch64.
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64"}


def architecture() -> str:
    """This machine's name, by the names that elf.py gives."""
    machine = platform.machine()
    return _ALIASES.get(machine, machine)


def make_directory(path: Path, parents: bool = False) -> None:
    """Create a directory, readable by every container; one that is there stays as it is."""
    try:
        if not path.is_dir():
            path.mkdir(parents=parents)
            path.chmod(DIRECTORY_MODE)  # whatever the umask
        if path.is_symlink():
            raise RefusalError(f"{path} is a symbolic link, which libsync never makes: remove it")
    except FileExistsError:
        raise RefusalError(f"{path} is no directory: remove it or choose another --target") from None
    except OSError as error:
        reason = "is on a read-only file system" if error.errno == errno.EROFS else f"can't be made: {error.strerror}"
        raise RefusalError(f"{path} {reason}; choose another --target or the --preset of this kind of node") from error


def is_readable_by_all(path: Path) -> bool:
    """Whether a container of any uid gets through the directory; otherwise its programs would run uncapped."""
    return path.stat().st_mode & READABLE_BY_ALL == READABLE_BY_ALL


def check_place(base: Path) -> None:
    """RefusalError unless the directory is one where containers can be given files that they may execute."""
    status = base.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise RefusalError(f"{base} belongs to uid {status.st_uid}, who could replace the library: chown it to root")
    if status.st_mode & stat.S_IWOTH:
        raise RefusalError(f"{base} can be written by everybody, who could replace the library: chmod o-w it")
    flags = os.statvfs(base).f_flag
    if flags & os.ST_RDONLY:
        raise RefusalError(f"{base} is on a read-only file system; choose another --target or --preset")
    if flags & os.ST_NOEXEC:
        raise RefusalError(
            f"{base} is on a noexec mount: containers couldn't load the library and would run uncapped; "
            "choose another --target or the --preset of this kind of node"
        )


def check_neighbours(base: Path, directory: Path) -> None:
    """RefusalError if another product uses the base, or unknown files lie in our directory below it."""
    for name in (names.LIBRARY_FILE, names.PRELOAD_FILE):
        if os.path.lexists(base / name):
            raise RefusalError(
                f"{base / name} belongs to another product (HAMi puts such files there): "
                "uninstall that first, or choose another --target"
            )
    ours = {names.LIBRARY_FILE, names.PRELOAD_FILE, names.MANIFEST_FILE}
    foreign = sorted(
        path.name
        for path in directory.iterdir()
        if path.name not in ours and not path.name.startswith(TEMPORARY_PREFIX)
    )
    if foreign:
        raise RefusalError(f"{directory} holds files that aren't ours ({', '.join(foreign[:5])}): remove them")


@contextlib.contextmanager
def hold_lock(base: Path) -> Iterator[None]:
    """One libsync at a time in a base directory (a rolling update can start the new one before the old has ended)."""
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_in_use(library: Path) -> bool:
    """Whether any process of the node, in whatever namespace, has the file open or mapped; True if it can't be told.

    A write lease is granted only on a file that nobody else has open, and a mapping keeps its file open. So this needs
    neither the host's pids nor more than the directory itself.
    """
    try:
        descriptor = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
