"""Which cards a process sees, and what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Card
from tests.simgpu.conftest import INVALID_DEVICE, MIB, NO_DEVICE, SUCCESS, Out, Program, Run, simgpu


def names(program: Program) -> list[bytes]:
    count = program.number("cuDeviceGetCount", Out(4))
    return [program.outputs("cuDeviceGetName", Out(64), 64, i)[0].rstrip(b"\0") for i in range(count)]


@pytest.fixture
def four(make_card: Callable[..., Card]) -> Card:
    return make_card("T4", "L4", "A100", "MIG-1g.10gb")


T4, L4, A100, MIG = b"Tesla T4", b"NVIDIA L4", b"NVIDIA A100-SXM4-80GB", b"NVIDIA H100 80GB HBM3 MIG 1g.10gb"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("0,1,2,3", [T4, L4, A100, MIG]),
        ("2,0", [A100, T4]),
        (" 1 , 2", [L4, A100]),
        ("1,9,2", [L4]),
        ("1,-1,2", [L4]),
        ("1,x", [L4]),
        ("{1}", [L4]),
        ("{2},{0}", [A100, T4]),
        ("{3}", [MIG]),
    ],
)
def test_visible_devices_are_a_list_up_to_the_first_that_is_none(
    run: Run, four: Card, visible: str, seen: list[bytes]
) -> None:
    program = run(started=False, on=four, CUDA_VISIBLE_DEVICES=visible.format(*[c["uuid"] for c in four.truth()]))
    program.outputs("cuInit", 0)
    assert names(program) == seen
    assert program.code("cuDeviceGet", Out(4), len(seen)) == INVALID_DEVICE


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "7", "0,0", "GPU-"])
def test_no_visible_device_is_an_error_of_init(run: Run, four: Card, visible: str) -> None:
    program = run(started=False, on=four, CUDA_VISIBLE_DEVICES=visible)
    assert program.code("cuInit", 0) == NO_DEVICE


def test_beginning_of_a_uuid_is_enough(run: Run, four: Card) -> None:
    program = run(started=False, on=four, CUDA_VISIBLE_DEVICES=four.truth()[1]["uuid"][:10])
    program.outputs("cuInit", 0)
    assert names(program) == [L4]


def test_memory_is_taken_of_the_card_that_is_meant(run: Run, four: Card) -> None:
    program = run(started=False, on=four, CUDA_VISIBLE_DEVICES="2,1").start(device=1)
    program.alloc(10 * MIB)
    assert [card["used_bytes"] for card in four.truth()] == [0, 180 * MIB, 0, 0]
    assert program.number("cuDeviceTotalMem_v2", Out(), 0) == 81920 * MIB


def test_uuid_is_the_one_that_the_truth_tells(run: Run, four: Card) -> None:
    program = run(on=four)
    told = program.outputs("cuDeviceGetUuid", Out(16), 1)[0].hex()
    assert told == four.truth()[1]["uuid"].removeprefix("GPU-").replace("-", "")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("Own:1000", (1000, 102, 0)),
        ("Own:1000:50", (1000, 50, 0)),
        ("Own:1000:50:100", (1000, 50, 100)),
        ("T4:8192", (8192, 102, 0)),
    ],
)
def test_cards_of_any_size(run: Run, make_card: Callable[..., Card], text: str, sizes: tuple[int, int, int]) -> None:
    total, context, reserved = sizes
    card = make_card(text)
    program = run(on=card)
    free, whole = program.outputs("cuMemGetInfo_v2", Out(), Out())
    assert int.from_bytes(whole, "little") == (total - reserved) * MIB
    assert int.from_bytes(free, "little") == (total - reserved - context) * MIB
    assert card.truth()[0]["total_bytes"] == total * MIB


@pytest.mark.parametrize("text", ["", "Unknown", "Own:", "Own:x", "Own:10:", "Own:-5", "Own:10:1:20", "Own:10:1:1:1"])
def test_cards_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    assert simgpu("create", "--state", tmp_path / "state", "--card", text).returncode == 2


def test_running_processes_keep_an_older_state(run: Run, card: Card) -> None:
    program = run()
    program.alloc(4 * MIB)
    assert simgpu("create", "--state", card.state).returncode == 0
    assert card.truth()[0]["used_bytes"] == 0
    assert program.code("cuMemAlloc_v2", Out(), 4 * MIB) == SUCCESS


def test_state_that_is_named_but_missing_is_said(tmp_path: Path) -> None:
    done = simgpu("truth", "--state", tmp_path / "none")
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_file_that_is_no_state_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"text")
    assert run(started=False, on=Card(tmp_path / "state")).code("cuInit", 0) == NO_DEVICE
