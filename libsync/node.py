"""Whether the node lets us keep our files in the base directory: what is asked before anything is written."""

import contextlib
import errno
import fcntl
import os
import platform
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from libsync import names
from libsync.errors import RefusalError
from libsync.files import DIRECTORY_MODE, TEMPORARY_PREFIX

READABLE_BY_ALL = 0o555
_LOCK_SECONDS = 60  # longer than a look that waits for its self-tests
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
            path.mkdir(parents=parents, exist_ok=True)  # another libsync may be making it just now
            path.chmod(DIRECTORY_MODE)  # whatever the umask
        refuse_link(path)
    except FileExistsError:
        raise RefusalError(f"{path} is no directory: remove it or choose another --target") from None
    except OSError as error:
        reason = "is on a read-only file system" if error.errno == errno.EROFS else f"can't be made: {error.strerror}"
        remedy = "choose another --target or the --preset of this kind of node"
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = "run libsync as root, or choose another --target"
        raise RefusalError(f"{path} {reason}; {remedy}") from error


def refuse_link(path: Path) -> None:
    """RefusalError for a symbolic link: what lies behind it is somebody else's."""
    if path.is_symlink():
        raise RefusalError(f"{path} is a symbolic link, which libsync never makes: remove it")


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
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
        raise RefusalError(f"{base} can be written by gid {status.st_gid}, who could replace the library: chmod g-w it")
    flags = os.statvfs(base).f_flag
    if flags & os.ST_RDONLY:
        raise RefusalError(f"{base} is on a read-only file system; choose another --target or --preset")
    if flags & os.ST_NOEXEC:
        raise RefusalError(
            f"{base} is on a noexec mount: containers couldn't load the library and would run uncapped; "
            "choose another --target or the --preset of this kind of node"
        )


def check_neighbours(base: Path, directory: Path) -> None:
    """RefusalError if another product uses the base, or unknown files lie in our directory, if there is one."""
    for name in (names.LIBRARY_FILE, names.PRELOAD_FILE):
        if os.path.lexists(base / name):
            raise RefusalError(
                f"{base / name} belongs to another product (HAMi puts such files there): "
                "uninstall that first, or choose another --target"
            )
    if not directory.is_dir():
        return
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
    """One libsync at a time in a base directory (a rolling update can start the new one before the old has ended).

    The kernel drops the lock of one that is killed. RefusalError if somebody else keeps it for too long.
    """
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > end:
                raise RefusalError(f"{base}: another libsync has been at work there for {_LOCK_SECONDS} s: end it")
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
