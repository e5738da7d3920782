"""Thousands of spoiled regions through the whole chain: from the file to the page."""

import random
import sys
from pathlib import Path

from monitor import metrics, reader, region
from monitor.joiner import Joiner
from monitor.messages import decode_scan, encode_scan
from monitor.metrics import Report
from monitor.podfile import PodFile
from tests.monitor.conftest import samples, value
from tests.monitor.tree import MIB, Node, WrittenDevice, WrittenSlot, region_bytes

ROUNDS = 3000
SETTLED = 1000  # rounds after which memory may not grow any more
FIELDS = region.SLOTS_OFFSET + 3 * region.SLOT_BYTES


def spoil(dice: random.Random, raw: bytearray, path: Path) -> None:
    """Change a few fields to what an attacker or a bug would put there; now and then cut or lengthen the file."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(0, FIELDS, dice.choice((1, 4, 8)))
        at = dice.choice((at, dice.randrange(0, 72, 4)))
        junk = dice.choice((b"\xff" * 4, b"\xff" * 8, b"\0" * 8, dice.randbytes(4), b"\xff" * 7 + b"\x7f", b'"} 1\n'))
        raw[at : at + len(junk)] = junk
    whole = region.REGION_BYTES
    with path.open("r+b") as file:
        file.write(raw)
        file.truncate(dice.choice((whole,) * 8 + (dice.randrange(whole), whole + dice.randrange(99))))


def test_no_spoiled_region_harms_the_neighbour_the_page_or_the_memory(node: Node) -> None:
    dice = random.Random(7)  # noqa: S311 (the same ones every time)
    slots = {0: WrittenSlot([(1, 2, 3)] * 2, [1, 1]), 2: WrittenSlot([(4, 5, 6)] * 2, [2, 2])}
    vandal = node.pod(1, "vandal", {"gpu-memory": "1"})
    devices = [WrittenDevice(), WrittenDevice(uuid="GPU-1")]
    path = node.region(vandal, devices, slots)
    neighbour = node.pod(2, "neighbour", {"gpu-memory": "4096"})
    node.region(neighbour, [WrittenDevice()], {0: WrittenSlot([(0, 0, 5 * MIB)])})
    pods = PodFile(node.pods_file()).read()
    joiner = Joiner(10, 64 * MIB)
    good = region_bytes(devices, slots)[:FIELDS]
    kinds = set()
    settled = 0
    for number in range(ROUNDS):
        spoil(dice, bytearray(good), path)
        _, scan = decode_scan(encode_scan(number, reader.scan(node.root, Path("/proc"), [], by_mount=False)))
        evidence = joiner.join(scan, (), pods, float(number))
        kinds |= {problem for *_, problem in evidence.bad_regions}
        page = metrics.render(Report(evidence)).decode()
        neighbours = {row.tracked for row in evidence.rows if row.pod == "neighbour"}
        assert neighbours == {5 * MIB}
        if number % 100 == 0:
            assert value(page, "hami_vgpu_memory_used_bytes", pod="neighbour") == 5 * MIB
            assert all(v >= 0 for found in samples(page).values() for v in found.values())
        if number == SETTLED:
            settled = sys.getallocatedblocks()
    grown = sys.getallocatedblocks() - settled
    assert kinds >= {"size", "magic", "abi", "layout", "value", "uuid", "unfinished"}, kinds
    assert "fault" not in kinds
    assert grown < 1000, f"{grown} blocks of memory more than after {SETTLED} rounds"
