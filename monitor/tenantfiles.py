"""Reads files below the kubelet's pods folder. What lies in a region's folder belongs to a tenant and may be anything.

Always so: nothing is opened but a regular file (a first look is by O_PATH, which runs no driver and waits for no
writer), no link is followed, nothing is mapped (a truncated file would kill the reader), nothing stays open (it
would keep the pod's volume from being unmounted), and no amount of what a tenant puts there makes the work grow.
"""

import errno
import fcntl
import itertools
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from monitor import names, region
from monitor.region import BadRegionError

# struct flock of both 64-bit architectures: type, whence, start, length, pid
FLOCK = struct.Struct("=hhxxxxqqixxxx")
F_OFD_GETLK = 36
NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW
MAX_PODS = 4096
MAX_CONTAINERS = 64
MAX_QUOTA_BYTES = 4096
LOCK_SECONDS = 0.02  # somebody may hold a million locks on the file; each question walks them all
POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}\Z")
CONTAINER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class Reading:
    """A region that made sense: devices, bytes and launches per device, and the living processes."""

    devices: tuple[region.Device, ...]
    used: list[int]  # KINDS numbers a device
    launches: list[int]
    processes: int


@contextmanager
def folder(path: str, at: int | None = None) -> Iterator[int]:
    """Open a directory (below another one), not following a link in its last component. Raises OSError."""
    fd = os.open(path, FOLDER, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def regular_file(name: str, at: int) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file below a directory for reading. Raises BadRegionError for any other kind, OSError."""
    look = os.open(name, os.O_PATH | NOFOLLOW, dir_fd=at)
    try:
        status = os.fstat(look)
        if not stat.S_ISREG(status.st_mode):
            raise BadRegionError("kind")
        fd = os.open(f"/proc/self/fd/{look}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(look)
    try:
        yield fd, status
    finally:
        os.close(fd)


def volume_path(kubelet_root: Path, pod_uid: str, plugin: str, volume: str) -> str:
    """Where the kubelet keeps a volume of a pod."""
    return f"{kubelet_root}/{names.PODS_DIR}/{pod_uid}/volumes/{plugin}/{volume}"


def pod_uids(kubelet_root: Path) -> list[str]:
    """List the pods of this node that have a folder. Raises OSError."""
    with os.scandir(kubelet_root / names.PODS_DIR) as entries:
        found = (entry.name for entry in entries if POD_UID.match(entry.name))
        return sorted(itertools.islice(found, MAX_PODS))


def container_names(kubelet_root: Path, pod_uid: str) -> list[str]:
    """List the containers of a pod that have a region's folder; empty for a pod without our volume."""
    path = volume_path(kubelet_root, pod_uid, names.EMPTY_DIR_PLUGIN, names.VOLUME_REGION)
    try:
        with folder(path) as fd, os.scandir(fd) as entries:
            seen = itertools.islice(entries, MAX_CONTAINERS)
            return sorted(e.name for e in seen if CONTAINER.match(e.name) and e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def read_region(kubelet_root: Path, pod_uid: str, container: str) -> Reading | None:
    """Read a container's region; None where there is none (yet). Raises BadRegionError."""
    path = volume_path(kubelet_root, pod_uid, names.EMPTY_DIR_PLUGIN, names.VOLUME_REGION)
    try:
        with (
            folder(path) as volume,
            folder(container, volume) as own,
            regular_file(names.REGION_FILE, own) as (fd, status),
        ):
            return _read(fd, status.st_size)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise BadRegionError("permission") from None
    except OSError as e:
        raise BadRegionError("link" if e.errno in (errno.ELOOP, errno.ENOTDIR) else "io") from None


def _read(fd: int, size: int) -> Reading:
    if size != region.REGION_BYTES:
        raise BadRegionError("size")
    devices = region.parse_head(os.pread(fd, region.SLOTS_OFFSET, 0))
    slots = []
    for index in living_slots(fd):
        slot = region.parse_slot(
            os.pread(fd, region.SLOT_BYTES, region.SLOTS_OFFSET + index * region.SLOT_BYTES), len(devices)
        )
        if slot is not None:
            slots.append(slot)
    used, launches = region.sum_slots(slots, len(devices))
    return Reading(devices=devices, used=used, launches=launches, processes=len(slots))


def living_slots(fd: int, seconds: float = LOCK_SECONDS) -> list[int]:
    """Find the slots whose process lives: it holds a lock on the slot's byte, which the kernel drops with it.

    One question over the whole range names one holder; what is left on both sides is asked again, so the cost goes
    with the living processes. Undecided after `seconds`, every slot counts as living: charged rather than lost.
    """
    end = time.monotonic() + seconds
    living: set[int] = set()
    ranges = [(0, region.MAX_SLOTS)]
    while ranges:
        if time.monotonic() > end:
            return list(range(region.MAX_SLOTS))
        low, high = ranges.pop()
        ask = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, region.SLOT_LOCK_OFFSET + low, high - low, 0)
        kind, _, start, length, _ = FLOCK.unpack(fcntl.fcntl(fd, F_OFD_GETLK, ask))
        if kind == fcntl.F_UNLCK:
            continue
        first = max(start - region.SLOT_LOCK_OFFSET, low)
        after = min(start + length - region.SLOT_LOCK_OFFSET, high) if length else high
        living.update(range(first, after))
        ranges += [r for r in ((low, first), (after, high)) if r[0] < r[1]]
    return sorted(living)


def read_quota(kubelet_root: Path, pod_uid: str) -> dict[str, str]:
    """Read the projected files that the library takes its quota from, by name, as far as they are there."""
    path = volume_path(kubelet_root, pod_uid, names.PROJECTED_PLUGIN, names.VOLUME_QUOTA)
    texts: dict[str, str] = {}
    try:
        with folder(path) as fd:
            # The kubelet keeps the files in a dated folder that the link ..data names, so that all change at once.
            dated = "."
            with suppress(OSError):
                dated = os.readlink("..data", dir_fd=fd)
            if "/" in dated:
                return texts
            with folder(dated, fd) as at:
                for name in (names.QUOTA_LIMIT_FILE, names.QUOTA_MEMORY_FILE, names.QUOTA_FRACTION_FILE):
                    with suppress(OSError, BadRegionError), regular_file(name, at) as (file, _):
                        texts[name] = os.pread(file, MAX_QUOTA_BYTES, 0).decode("ascii", "replace")
    except OSError:
        pass
    return texts
