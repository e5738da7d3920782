"""Writes what a kubelet, a webhook and a library leave on a node, below any directory."""

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor import names, region
from monitor.tenantfiles import FLOCK

MIB = 1 << 20
F_OFD_SETLK = 37
T4 = "GPU-00000000-0000-4000-8000-000000000000"
T4_BYTES = 15360 * MIB


@dataclass
class WrittenDevice:
    """Contents of one device of a region."""

    uuid: str = T4
    physical: int = T4_BYTES
    limit: int = 4147 * MIB
    used: int = 0
    unbelieved: int = 0
    refusals: int = 0
    largest: int = 0
    last_ns: int = 0
    source: int = 1
    peak: int = 0

    def pack(self) -> bytes:
        """Its bytes."""
        return region.DEVICE.pack(
            self.uuid.encode(),
            self.physical,
            self.limit,
            self.used,
            self.unbelieved,
            self.refusals,
            self.largest,
            self.last_ns,
            self.source,
            0,
            self.peak,
        ).ljust(region.DEVICE_BYTES, b"\0")


@dataclass
class WrittenSlot:
    """Contents of one slot: bytes as (context, module, buffer) per device."""

    used: list[tuple[int, int, int]] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    pid: int = 7
    start_ticks: int = 100
    state: int = 1

    def pack(self) -> bytes:
        """Its bytes."""
        numbers = [value for kinds in self.used for value in kinds]
        numbers += [0] * (region.MAX_DEVICES * region.KINDS - len(numbers))
        launches = self.launches + [0] * (region.MAX_DEVICES - len(self.launches))
        raw = region.SLOT.pack(self.state, 1, self.pid, 0, 4026531836, self.start_ticks, 0, *numbers, *launches)
        return raw.ljust(region.SLOT_BYTES, b"\0")


def region_bytes(devices: list[WrittenDevice], slots: dict[int, WrittenSlot] | None = None) -> bytearray:
    """A whole region as the library writes it."""
    raw = bytearray(region.REGION_BYTES)
    region.HEADER.pack_into(
        raw,
        0,
        region.MAGIC,
        1,
        region.HEADER_BYTES,
        region.DEVICE_BYTES,
        region.SLOT_BYTES,
        region.MAX_DEVICES,
        region.MAX_SLOTS,
        region.REGION_BYTES,
        1,
        0,
        len(devices),
        1,
        0,
    )
    for i, device in enumerate(devices):
        at = region.HEADER_BYTES + i * region.DEVICE_BYTES
        raw[at : at + region.DEVICE_BYTES] = device.pack()
    for index, slot in (slots or {}).items():
        at = region.SLOTS_OFFSET + index * region.SLOT_BYTES
        raw[at : at + region.SLOT_BYTES] = slot.pack()
    return raw


def hold_slot(path: Path, index: int, count: int = 1) -> int:
    """Take the lock that says a slot's process lives; it ends with the descriptor that is given back."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fcntl.fcntl(fd, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, region.SLOT_LOCK_OFFSET + index, count, 0))
    return fd


def uid(number: int) -> str:
    """A pod's uid."""
    return f"{number:08x}-1111-4222-8333-444444444444"


@dataclass
class Node:
    """A node's kubelet root, with the list of its pods. Close it to let all slots die."""

    root: Path
    pods: list[dict[str, Any]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def pod(
        self,
        number: int,
        name: str,
        annotations: dict[str, str] | None = None,
        *,
        containers: tuple[str, ...] = ("main",),
        injected: bool = True,
        phase: str = "Running",
    ) -> str:
        """Add a pod to the list; gives its uid."""
        volumes = [{"name": names.VOLUME_PRELOAD}] if injected else []
        statuses = [{"name": c, "containerID": f"containerd://{number:032x}{i:032x}"} for i, c in enumerate(containers)]
        self.pods.append(
            {
                "metadata": {
                    "uid": uid(number),
                    "namespace": "team-a",
                    "name": name,
                    "annotations": annotations or {},
                },
                "spec": {"containers": [{"name": c} for c in containers], "volumes": volumes},
                "status": {"phase": phase, "containerStatuses": statuses},
            }
        )
        (self.root / "pods" / uid(number)).mkdir(parents=True, exist_ok=True)
        return uid(number)

    def volume(self, pod_uid: str) -> Path:
        """The folder of the pod's regions."""
        path = self.root / "pods" / pod_uid / "volumes" / names.EMPTY_DIR_PLUGIN / names.VOLUME_REGION
        path.mkdir(parents=True, exist_ok=True)
        return path

    def region(
        self,
        pod_uid: str,
        devices: list[WrittenDevice],
        slots: dict[int, WrittenSlot] | None = None,
        container: str = "main",
        alive: bool = True,
    ) -> Path:
        """Write a container's region; its slots live until the node is closed unless told otherwise."""
        folder = self.volume(pod_uid) / container
        folder.mkdir(exist_ok=True)
        path = folder / names.REGION_FILE
        path.write_bytes(region_bytes(devices, slots))
        if alive:
            self.held += [hold_slot(path, index) for index in slots or {}]
        return path

    def quota(self, pod_uid: str, **texts: str) -> None:
        """Write the pod's quota files as the kubelet does: dated folder, link, one link a file."""
        path = self.root / "pods" / pod_uid / "volumes" / names.PROJECTED_PLUGIN / names.VOLUME_QUOTA
        dated = path / "..2026_01_01"
        dated.mkdir(parents=True)
        (path / "..data").symlink_to("..2026_01_01")
        for key, text in texts.items():
            name = key.replace("_", "-")
            (dated / name).write_text(text)
            (path / name).symlink_to(f"..data/{name}")

    def pods_file(self) -> Path:
        """Write the list of pods."""
        path = self.root / "pods.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": self.pods}))
        return path

    def close(self) -> None:
        """Let all slots die."""
        while self.held:
            os.close(self.held.pop())
