"""Arrays and mipmapped arrays: charged as the card lays them out."""

from __future__ import annotations

import random

import pytest

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB


def agree(ground: Ground) -> int:
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


@pytest.mark.parametrize(
    "shape",
    [(1024, 1024), (1000, 333), (4096, 0, 0), (65536, 0, 100, 4, 1), (128, 128, 128), (1, 1), (100, 1, 1, 1)],
    ids=str,
)
def test_an_array_is_charged_what_it_takes(ground: Ground, shape: tuple[int, ...]) -> None:
    worker = ground.worker("2200m")
    result, array = worker.ask("array", *shape)
    assert result == 0
    agree(ground)
    assert worker.call("cuArrayDestroy", array) == 0
    assert agree(ground) == CONTEXT


def test_arrays_stop_at_the_limit(ground: Ground) -> None:
    worker = ground.worker("2200m")
    granted = [worker.array(8192, 8192)[0] for _ in range(3)]
    assert granted == [0, 0, OOM]
    assert agree(ground) == 2 * GIB + CONTEXT


@pytest.mark.parametrize("levels", [1, 5, 14, 99])
def test_a_mipmapped_array_is_charged_all_its_levels(ground: Ground, levels: int) -> None:
    worker = ground.worker("2200m")
    result, array = worker.mipmapped(4096, 4096, levels)
    assert result == 0
    agree(ground)
    assert worker.call("cuMipmappedArrayDestroy", array) == 0
    assert agree(ground) == CONTEXT


def test_arrays_die_with_their_context(ground: Ground) -> None:
    worker = ground.worker("2200m")
    context = worker.out("cuCtxCreate_v2", 0, 0)[1]
    worker.array(4096, 4096)
    worker.mipmapped(1024, 1024, 3)
    assert worker.call("cuCtxDestroy_v2", context) == 0
    assert agree(ground) == CONTEXT


@pytest.mark.parametrize("flags", [0x40, 0x80], ids=["sparse", "deferred mapping"])
def test_arrays_without_memory_of_their_own_are_not_charged(ground: Ground, flags: int) -> None:
    worker = ground.worker("202m")
    assert worker.array(8192, 8192, 0, 4, flags)[0] == 0
    assert agree(ground) == CONTEXT


def test_small_arrays_are_charged_what_they_hold_whatever_went_before(ground: Ground) -> None:
    """Arrays that stay behind in blocks of which everything else was freed, beside linear requests that come and go."""
    worker = ground.worker("2200m")
    chance = random.Random(7)  # noqa: S311
    live: list[tuple[str, int]] = []
    for step in range(600):
        growing = chance.random() < (0.8 if step // 100 % 2 == 0 else 0.3)
        if growing or not live:
            rows = chance.choice([8, 64, 200, 900])
            if chance.random() < 0.5:
                result, array = worker.array(64, rows)  # 1 KiB a row
                live.append(("cuArrayDestroy", array))
            else:
                result, pointer = worker.alloc(1024 * rows)
                live.append(("cuMemFree_v2", pointer))
            assert result == 0
        else:
            name, handle = live.pop(chance.randrange(len(live)))
            assert worker.call(name, handle) == 0
        agree(ground)
    for name, handle in live:
        assert worker.call(name, handle) == 0
    assert agree(ground) == CONTEXT


def test_arrays_of_which_the_neighbours_were_freed_leave_the_rest_of_the_quota(ground: Ground) -> None:
    worker = ground.worker("2200m")
    arrays = []
    for _ in range(500):
        small = worker.array(64, 8)[1]
        arrays.append((small, worker.array(64, 1000)[1]))
    for _, large in arrays:
        assert worker.call("cuArrayDestroy", large) == 0
    assert worker.alloc(2200 * MIB - agree(ground))[0] == 0
