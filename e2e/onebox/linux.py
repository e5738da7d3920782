"""The few system calls of namespaces and mounts that Python 3.11 doesn't have. Errors are OSError, as Python's own."""

import ctypes
import errno
import os
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE = 32, 1024, 2048, 4096, 16384, 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
)
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
# Mount options that a user namespace isn't allowed to take off again when it mounts read-only.
_LOCKED = {
    os.ST_NOSUID: MS_NOSUID,
    os.ST_NODEV: MS_NODEV,
    os.ST_NOEXEC: MS_NOEXEC,
    os.ST_NOATIME: MS_NOATIME,
    os.ST_NODIRATIME: MS_NODIRATIME,
    os.ST_RELATIME: MS_RELATIME,
}
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str | None, target: Path, filesystem: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""

    def encode(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    result = _libc.mount(
        encode(source), os.fsencode(target), encode(filesystem), ctypes.c_ulong(flags), encode(options)
    )
    _check(result, f"mount {source or filesystem or 'none'} on {target}")


def bind(source: Path, target: Path, read_only: bool) -> None:
    """Bind a file or directory, with what is mounted below it, without devices and set-user-ID programs."""
    mount(str(source), target, None, MS_BIND | MS_REC)
    flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (MS_RDONLY if read_only else 0)
    present = os.statvfs(target).f_flag
    for held, wanted in _LOCKED.items():
        flags |= wanted if present & held else 0
    mount(None, target, None, flags)


def bind_device(source: Path, target: Path) -> None:
    """Bind a device file; it stays one."""
    mount(str(source), target, None, MS_BIND)


def unmount(target: Path) -> None:
    """Take a mount away, even a busy one; none there is fine."""
    if _libc.umount2(os.fsencode(target), MNT_DETACH) and ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
        _check(-1, f"umount {target}")


def make_private() -> None:
    """What is mounted in this mount namespace from here on is seen in no other one."""
    mount(None, Path("/"), None, MS_REC | MS_PRIVATE)


def enter_root(root: Path) -> None:
    """Make a mount point the root of this mount namespace and drop the old one from it."""
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), f"pivot_root {root}")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def join(pid: int, names: tuple[str, ...]) -> None:
    """Enter namespaces of a process. All are opened first: entering the mount namespace takes /proc away."""
    descriptors = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    for name, descriptor in zip(names, descriptors, strict=True):
        _check(_libc.setns(descriptor, 0), f"setns {name}")
        os.close(descriptor)


def same_namespace(pid: int, name: str) -> bool:
    """Whether a process lives in our namespace of that kind."""
    return Path(f"/proc/{pid}/ns/{name}").readlink() == Path(f"/proc/self/ns/{name}").readlink()


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    prctl(PR_SET_PDEATHSIG, 9)
