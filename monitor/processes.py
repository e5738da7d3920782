"""Whose process is it: from a pid that NVML names to the pod and container that it runs in.

Two ways, both the kernel's word and not the process's:

cgroup  /proc/<pid>/cgroup names the pod's and the container's control group (v1 and v2, systemd's and plain names).
        A container may have made groups below its own, so the first name from the left counts.
mount   /proc/<pid>/mountinfo shows which folder is mounted at /run/vgpu: for machines whose pods have no control
        groups of their own. Reading it needs the right to trace the process.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monitor import names

MAX_BYTES = 1 << 20
POD_UUID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
STATIC_POD = r"[0-9a-f]{32}"
POD_GROUP = re.compile(rf"(?:.*-)?pod({POD_UUID}|{STATIC_POD})(?:\.slice)?\Z")
CONTAINER_GROUP = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?\Z")


@dataclass(frozen=True, slots=True)
class Holder:
    """The container that a process is in: its id as the runtime says (cgroup) or its name (mount)."""

    pid: int
    pod_uid: str
    container_id: str = ""
    container: str = ""


def _read(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        left = MAX_BYTES
        while left > 0 and (chunk := os.read(fd, min(left, 65536))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks).decode("utf-8", "replace")
    finally:
        os.close(fd)


def from_cgroup(text: str) -> tuple[str, str] | None:
    """Find (pod uid, container id) in the text of /proc/<pid>/cgroup; the id is empty for the pod's own group."""
    for line in text.splitlines():
        parts = line.split(":", 2)[-1].split("/")
        for i, part in enumerate(parts):
            # A path that starts with .. is seen from within our own control group, below the kubelet's.
            inside = parts[1:2] == [".."] or any("kubepods" in before for before in parts[: i + 1])
            if inside and (pod := POD_GROUP.match(part)):
                container = CONTAINER_GROUP.match(parts[i + 1]) if i + 1 < len(parts) else None
                return pod[1].replace("_", "-"), container[1] if container else ""
    return None


def region_mount(text: str) -> tuple[str, str] | None:
    """Find (device as major:minor, folder within it) of what is mounted at /run/vgpu, in the text of mountinfo."""
    found = None
    for line in text.splitlines():
        fields = line.split(" ")
        if fields[4:5] == [names.REGION_DIR]:
            found = fields[2], fields[3]  # the last one is the one on top
    return found


def mount_keys(kubelet_root: Path, pod_uid: str, container: str) -> list[tuple[str, str]]:
    """Say how a container's region folder can appear in mountinfo: as part of a disk, or of the pod's own tmpfs.

    `kubelet_root` is absolute and free of links.
    """
    tail = f"/{names.PODS_DIR}/{pod_uid}/volumes/{names.EMPTY_DIR_PLUGIN}/{names.VOLUME_REGION}/{container}"
    full = f"{kubelet_root}{tail}"
    try:
        device = os.lstat(full).st_dev
    except OSError:
        return []
    # mountinfo counts from the root of the filesystem, which may be mounted anywhere above the pod's folder.
    starts = (i for i in range(len(full) - len(tail) + 1) if full[i] == "/")
    number = f"{os.major(device)}:{os.minor(device)}"
    return [*((number, full[i:]) for i in starts), (number, f"/{container}")]


def find_holder(pid: int, proc: Path, mounts: Mapping[tuple[str, str], tuple[str, str]] | None) -> Holder | None:
    """Find the container of a process; None if it is in none. Raises OSError where /proc can't tell.

    `mounts` maps what `mount_keys` says to (pod uid, container); None leaves the second way out.
    """
    if pod := from_cgroup(_read(proc / str(pid) / "cgroup")):
        return Holder(pid, pod[0], container_id=pod[1])
    if mounts is None:
        return None
    mounted = region_mount(_read(proc / str(pid) / "mountinfo"))
    if mounted is None or mounted not in mounts:
        return None
    pod_uid, container = mounts[mounted]
    return Holder(pid, pod_uid, container=container)
