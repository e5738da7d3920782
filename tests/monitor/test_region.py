"""What a region says is believed as far as it makes sense, and not a byte further."""

import random
import struct

import pytest

from monitor import region
from monitor.region import BadRegionError
from tests.monitor.tree import MIB, T4, WrittenDevice, WrittenSlot, region_bytes

OTHER = "GPU-11111111-0000-4000-8000-000000000000"


def reason(raw: bytes) -> str:
    with pytest.raises(BadRegionError) as caught:
        region.parse_head(raw)
    return caught.value.reason


def patched(offset: int, layout: str, *values: int | bytes) -> bytes:
    raw = region_bytes([WrittenDevice(), WrittenDevice(uuid=OTHER)])
    struct.pack_into(layout, raw, offset, *values)
    return bytes(raw[: region.SLOTS_OFFSET])


def test_devices_are_read_as_written() -> None:
    raw = region_bytes(
        [
            WrittenDevice(refusals=3, largest=9, last_ns=10, peak=11, unbelieved=12),
            WrittenDevice(uuid=OTHER, limit=2**64 - 1, source=5),
        ]
    )
    first, second = region.parse_head(bytes(raw))
    assert (first.uuid, first.limit, first.source) == (T4, 4147 * MIB, "kai")
    assert (first.refusals, first.refused_largest, first.refused_last_ns, first.peak, first.unbelieved) == (
        3,
        9,
        10,
        11,
        12,
    )
    assert (second.uuid, second.limit, second.source) == (OTHER, None, "unlimited")


def test_slots_are_summed_per_device_and_kind() -> None:
    slots = [
        region.parse_slot(WrittenSlot([(1, 2, 3), (4, 5, 6)], [7, 8]).pack(), 2),
        region.parse_slot(WrittenSlot([(10, 20, 30), (40, 50, 60)], [70, 80]).pack(), 2),
    ]
    assert region.sum_slots([slot for slot in slots if slot], 2) == ([11, 22, 33, 44, 55, 66], [77, 88])


def test_a_free_slot_is_none() -> None:
    assert region.parse_slot(bytes(region.SLOT_BYTES), 2) is None


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "truncated"),
        (patched(0, "<Q", 1), "magic"),
        (bytes(region.SLOTS_OFFSET), "unfinished"),
        (patched(8, "<I", 0), "abi"),
        (patched(8, "<I", 2), "abi"),
        (patched(12, "<I", 512), "layout"),
        (patched(20, "<I", 0), "layout"),
        (patched(28, "<I", 2**32 - 1), "layout"),
        (patched(56, "<I", 17), "count"),
        (patched(56, "<i", -1), "count"),
        (patched(60, "<I", 0), "unfinished"),
        (patched(256, "<64s", b"GPU-\xff"), "uuid"),
        (patched(256, "<64s", b'GPU-"} 1\n'), "uuid"),
        (patched(256, "<64s", OTHER.encode()), "uuid"),
        (patched(256, "<64s", b"G" * 64), "uuid"),
        (patched(256 + 64, "<q", -1), "value"),
        (patched(256 + 72, "<q", -2), "value"),
        (patched(256 + 96, "<q", -1), "value"),
        (patched(256 + 120, "<I", 99), "value"),
    ],
)
def test_nonsense_is_named_and_refused(raw: bytes, word: str) -> None:
    assert reason(raw) == word


@pytest.mark.parametrize(
    "slot", [WrittenSlot([(1 << 60, 0, 0)]), WrittenSlot([(2**64 - 1, 0, 0)]), WrittenSlot(launches=[2**63])]
)
def test_numbers_that_no_card_has_are_refused(slot: WrittenSlot) -> None:
    with pytest.raises(BadRegionError, match="value"):
        region.parse_slot(slot.pack(), 1)


def test_numbers_of_devices_that_are_not_there_dont_matter() -> None:
    assert region.parse_slot(WrittenSlot([(1, 1, 1), (2**64 - 1, 0, 0)]).pack(), 1)


def test_ten_thousand_mutated_regions_raise_nothing_else() -> None:
    """Whatever bytes are changed, the answer is devices with labels fit for a page, or BadRegionError."""
    dice = random.Random(20)  # noqa: S311 (the same mutations every time)
    good = bytes(region_bytes([WrittenDevice(), WrittenDevice(uuid=OTHER)]))[: region.SLOTS_OFFSET]
    slot = WrittenSlot([(1, 2, 3)] * 16, [1] * 16).pack()
    believed = 0
    reasons = set()
    for _ in range(10_000):
        head, tail = bytearray(good), bytearray(slot)
        for raw in (head, tail):
            for _ in range(dice.randint(1, 6)):
                at = dice.choice((dice.randrange(len(raw)), dice.randrange(0, min(len(raw), 512))))
                junk = dice.choice(
                    (b"\0", b"\xff", dice.randbytes(1), dice.randbytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7)
                )
                raw[at : at + len(junk)] = junk
        cut_head = bytes(head[: dice.choice((len(head), len(head), dice.randrange(len(head) + 1)))])
        try:
            devices = region.parse_head(cut_head)
            read = region.parse_slot(bytes(tail), len(devices))
        except BadRegionError as e:
            reasons.add(e.reason)
            continue
        believed += 1
        assert all(region.UUID.match(device.uuid) for device in devices)
        assert read is None or all(0 <= v <= region.PLAUSIBLE_BYTES for v in read.used)
    assert all(word.isalpha() and word.islower() for word in reasons)
    assert believed, "no mutation was harmless: the test mutates too much to say anything"
