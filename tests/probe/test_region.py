"""region prints the ledger for people, and says what is wrong with a file that isn't one."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.probe.conftest import GIB, MIB, PROBE, Probe

HEADER, DEVICE, SLOT, DEVICES, SLOTS = 256, 256, 640, 16, 1024
TOTAL = HEADER + DEVICES * DEVICE + SLOTS * SLOT
MAGIC = 0x0055504756494B0A


def written(path: Path, *, magic: int = MAGIC, abi: int = 1, ready: int = 1, size: int = TOTAL) -> Path:
    """A region as csrc/include/vgpu/region.h lays it out: one device, one slot of a process that is gone."""
    data = bytearray(TOTAL)
    struct.pack_into("<QIIIIIIQQQII", data, 0, magic, abi, HEADER, DEVICE, SLOT, DEVICES, SLOTS, TOTAL, 0, 0, 1, ready)
    numbers = (15360 * MIB, 4147 * MIB, GIB, 0, 3, 2 * GIB, 1_700_000_000_000_000_000)
    struct.pack_into("<64s7QII", data, HEADER, b"GPU-1", *numbers, 1, 0)
    slot = HEADER + DEVICES * DEVICE
    struct.pack_into("<IIi", data, slot, 1, 1, 42)
    struct.pack_into("<3Q", data, slot + 64, 102 * MIB, 2 * MIB, 920 * MIB)
    path.write_bytes(data[:size])
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROBE, "region", *arguments], check=False, capture_output=True, text=True)


def test_people_read_limit_use_and_refusals(tmp_path: Path) -> None:
    """Needs no driver and no GPU: the file alone is read."""
    done = run(written(tmp_path / "region"))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "device 0  GPU-1, a card of 15 GiB",
        "  limit    4147 MiB (limit computed by KAI)",
        "  used     1 GiB, at most 0 bytes",
        "  refused  3 requests, the largest 2 GiB, the last 2023-11-14T22:13:20Z",
        "slot 0    pid 42, gone",
        "  device 0, context 102 MiB, module 2 MiB, buffer 920 MiB, 0 launches",
    ]


def test_programs_read_the_same_as_json(tmp_path: Path) -> None:
    document = json.loads(run(written(tmp_path / "region"), "--json").stdout)
    assert document["devices"][0]["limit_bytes"] == 4147 * MIB
    assert document["slots"][0]["devices"][0]["buffer_bytes"] == 920 * MIB


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"magic": 1}, "not a region"),
        ({"abi": 99}, "another abi"),
        ({"ready": 0}, "not ready"),
        ({"size": 4096}, "too short"),
    ],
)
def test_file_that_is_no_region_is_told_as_such(tmp_path: Path, changes: dict[str, int], sentence: str) -> None:
    done = run(written(tmp_path / "region", **changes))
    assert done.returncode == 3
    assert sentence in done.stderr


def test_link_in_place_of_the_region_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path / "region"))
    assert run(tmp_path / "link").returncode == 3


def test_living_process_is_told_from_a_dead_one(under: Callable[[str], Probe]) -> None:
    """By the lock that a mapping keeps, not by the number."""
    probe = under("4147m")
    with probe.holding("1GiB") as document:
        slots = probe.json("region", str(probe.region))["slots"]
        (holder,) = [slot for slot in slots if slot["pid"] == document["pid"]]
        assert holder["process"] == "alive"
        assert holder["devices"][0]["buffer_bytes"] == GIB
        assert holder["devices"][0]["context_bytes"] == 102 * MIB
