"""The monitor's copy of the region's layout is the compiler's."""

import json
import subprocess
from pathlib import Path

import pytest

from monitor import region
from tests.monitor.tree import WrittenDevice, WrittenSlot, region_bytes

BUILD = Path(__file__).resolve().parents[2] / "build"


@pytest.fixture(scope="module")
def layout() -> dict[str, int]:
    program = BUILD / "tests" / "region-layout"
    assert program.exists(), "run `make build` first"
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    printed: dict[str, int] = json.loads(done.stdout)
    return printed


def test_sizes_and_constants_are_the_headers(layout: dict[str, int]) -> None:
    mine = {
        "magic": region.MAGIC,
        "max_devices": region.MAX_DEVICES,
        "max_slots": region.MAX_SLOTS,
        "kinds": region.KINDS,
        "slot_lock_offset": region.SLOT_LOCK_OFFSET,
        "header_bytes": region.HEADER_BYTES,
        "device_bytes": region.DEVICE_BYTES,
        "slot_bytes": region.SLOT_BYTES,
        "slots_offset": region.SLOTS_OFFSET,
        "region_bytes": region.REGION_BYTES,
    }
    assert mine == {name: layout[name] for name in mine}
    assert layout["abi"] in region.READABLE_ABIS
    assert list(region.SOURCES) == [
        name.removeprefix("source.")
        for name in sorted((n for n in layout if n.startswith("source.")), key=lambda n: layout[n])
    ]


def field_at(raw: bytes, offset: int, size: int = 8) -> int:
    return int.from_bytes(raw[offset : offset + size], "little")


def test_fields_lie_where_the_compiler_puts_them(layout: dict[str, int]) -> None:
    """Each field gets a number of its own through the monitor's structs and is found at the compiler's offset."""
    device = WrittenDevice(
        uuid="GPU-1", physical=1, limit=2, used=3, unbelieved=4, refusals=5, largest=6, last_ns=7, source=4, peak=9
    )
    slot = WrittenSlot([(11, 12, 13), (14, 15, 16)], [17, 18], pid=19, start_ticks=20)
    raw = bytes(region_bytes([device], {0: slot}))
    header = region.HEADER.unpack_from(raw)
    for name, number in zip(
        ("magic", "abi", "header_bytes", "device_bytes", "slot_bytes", "max_devices", "max_slots"), header, strict=False
    ):
        assert field_at(raw, layout[f"header.{name}"], 8 if name == "magic" else 4) == number
    assert field_at(raw, layout["header.total_bytes"]) == region.REGION_BYTES
    assert field_at(raw, layout["header.device_count"], 4) == 1
    assert field_at(raw, layout["header.ready"], 4) == 1
    at = region.HEADER_BYTES
    names = ("physical_bytes", "limit_bytes", "used_bytes", "unbelieved_bytes", "refusals", "refused_largest_bytes")
    assert [field_at(raw, at + layout[f"device.{name}"]) for name in names] == [1, 2, 3, 4, 5, 6]
    assert field_at(raw, at + layout["device.refused_last_unix_ns"]) == 7
    assert field_at(raw, at + layout["device.limit_source"], 4) == 4
    assert field_at(raw, at + layout["device.peak_used_bytes"]) == 9
    at = region.SLOTS_OFFSET
    assert field_at(raw, at + layout["slot.state"], 4) == 1
    assert field_at(raw, at + layout["slot.pid"], 4) == 19
    assert field_at(raw, at + layout["slot.start_time_ticks"]) == 20
    used = layout["slot.used_bytes"]
    assert [field_at(raw, at + used + 8 * i) for i in range(6)] == [11, 12, 13, 14, 15, 16]
    assert [field_at(raw, at + layout["slot.launches"] + 8 * i) for i in range(2)] == [17, 18]
