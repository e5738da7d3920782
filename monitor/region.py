"""The region: the ledger that the library keeps for one container, as bytes that a tenant may have written.

Layout (little endian; csrc/include/vgpu/region.h is the authority and a test compares the offsets):

    header   256 bytes: magic, abi, sizes, lock, device_count, ready
    devices  16 × 256 bytes: uuid, physical, limit, used, unbelieved, refusals, largest, last, source, peak
    slots    1024 × 640 bytes: state, generation, pid, namespace, start, bytes per device and kind, launches

Nothing here is trusted: whatever doesn't make sense raises BadRegionError with a reason that is fit for a metric label.
This module does no input or output.
"""

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = 0x0055504756494B0A
READABLE_ABIS = (1,)  # this release's and, once there is one, the abi before it: old pods keep their library for weeks
MAX_DEVICES = 16
MAX_SLOTS = 1024
KINDS = 3  # context, module, buffer
SLOT_LOCK_OFFSET = 1 << 40
UNLIMITED = 2**64 - 1

HEADER = struct.Struct("<QIIIIIIQQQIIQ")
DEVICE = struct.Struct("<64sQQQQQQQIIQ")
SLOT = struct.Struct("<IIiIQQQ24x" + f"{MAX_DEVICES * KINDS}Q" + f"{MAX_DEVICES}Q")
HEADER_BYTES = 256
DEVICE_BYTES = 256
SLOT_BYTES = 640
SLOTS_OFFSET = HEADER_BYTES + MAX_DEVICES * DEVICE_BYTES
REGION_BYTES = SLOTS_OFFSET + MAX_SLOTS * SLOT_BYTES

SOURCES = ("none", "kai", "gpu-memory", "gpu-fraction", "environment", "unlimited", "unusable")

# No card and no sum of cards of one node comes near it; more is a negative or an invented number.
PLAUSIBLE_BYTES = 1 << 50
PLAUSIBLE_COUNT = 1 << 62

UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,59}\Z")


class BadRegionError(Exception):
    """The bytes are no region that this release can believe; `reason` is one lower-case word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Device(NamedTuple):
    """What the library publishes about one of the container's cards. All sizes in bytes."""

    uuid: str
    physical: int
    limit: int | None  # None: no limit is enforced
    unbelieved: int
    refusals: int
    refused_largest: int
    refused_last_ns: int
    source: str
    peak: int


class Slot(NamedTuple):
    """What one process of the container is charged for: per device its context, module and buffer bytes; launches."""

    generation: int
    pid: int
    start_ticks: int
    used: list[int]  # KINDS numbers a device
    launches: list[int]


def parse_head(head: bytes) -> tuple[Device, ...]:
    """Read header and devices, the first SLOTS_OFFSET bytes of a region. Raises BadRegionError."""
    if len(head) < SLOTS_OFFSET:
        raise BadRegionError("truncated")
    (magic, abi, header_bytes, device_bytes, slot_bytes, max_devices, max_slots, total, _, _, count, ready, _) = (
        HEADER.unpack_from(head)
    )
    if magic == 0 and not ready:
        raise BadRegionError("unfinished")  # just created, or zeroed
    if magic != MAGIC:
        raise BadRegionError("magic")
    if abi not in READABLE_ABIS:
        raise BadRegionError("abi")
    if not ready:
        raise BadRegionError("unfinished")
    sizes = (header_bytes, device_bytes, slot_bytes, max_devices, max_slots, total)
    if sizes != (HEADER_BYTES, DEVICE_BYTES, SLOT_BYTES, MAX_DEVICES, MAX_SLOTS, REGION_BYTES):
        raise BadRegionError("layout")
    if count > MAX_DEVICES:
        raise BadRegionError("count")
    devices = tuple(_device(head, HEADER_BYTES + i * DEVICE_BYTES) for i in range(count))
    if len({device.uuid for device in devices}) != len(devices):
        raise BadRegionError("uuid")
    return devices


def _device(head: bytes, offset: int) -> Device:
    raw, physical, limit, _, unbelieved, refusals, largest, last_ns, source, _, peak = DEVICE.unpack_from(head, offset)
    uuid = raw.split(b"\0", 1)[0].decode("latin-1")
    if not UUID.match(uuid):
        raise BadRegionError("uuid")
    # What was refused or not believed may well be absurd: that is why. It is cut, not a reason to doubt the rest.
    if physical > PLAUSIBLE_BYTES or peak > PLAUSIBLE_BYTES or (limit > PLAUSIBLE_BYTES and limit != UNLIMITED):
        raise BadRegionError("value")
    if refusals > PLAUSIBLE_COUNT or last_ns > PLAUSIBLE_COUNT or source >= len(SOURCES):
        raise BadRegionError("value")
    return Device(
        uuid=uuid,
        physical=physical,
        limit=None if limit == UNLIMITED else limit,
        unbelieved=unbelieved,
        refusals=refusals,
        refused_largest=largest,
        refused_last_ns=last_ns,
        source=SOURCES[source],
        peak=peak,
    )


def parse_slot(raw: bytes, devices: int) -> Slot | None:
    """Read one slot's SLOT_BYTES bytes for that many devices; None if nobody has taken it. Raises BadRegionError."""
    if len(raw) < SLOT_BYTES:
        raise BadRegionError("truncated")
    state, generation, pid, _, _, start_ticks, _, *numbers = SLOT.unpack_from(raw)
    if state == 0:
        return None
    if state != 1:
        raise BadRegionError("slot")
    used = numbers[: devices * KINDS]
    launches = numbers[MAX_DEVICES * KINDS :][:devices]
    if max(used, default=0) > PLAUSIBLE_BYTES or max(launches, default=0) > PLAUSIBLE_COUNT:
        raise BadRegionError("value")
    return Slot(generation=generation, pid=pid, start_ticks=start_ticks, used=used, launches=launches)


def sum_slots(slots: Sequence[Slot], devices: int) -> tuple[list[int], list[int]]:
    """Add up bytes (KINDS numbers a device) and launches (one a device)."""
    if not slots:
        return [0] * (devices * KINDS), [0] * devices
    used = [sum(column) for column in zip(*(slot.used for slot in slots), strict=True)]
    return used, [sum(column) for column in zip(*(slot.launches for slot in slots), strict=True)]
