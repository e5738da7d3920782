"""One truth in all answers: total is the limit, used is what the container holds, free is what is left of both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB


def test_cuda_and_nvml_agree(ground: Ground) -> None:
    worker, other = ground.worker("4147m"), ground.worker("4147m")
    worker.alloc(GIB)
    other.alloc(512 * MIB)
    used, total = GIB + 512 * MIB + 2 * CONTEXT, 4147 * MIB
    assert worker.info() == [0, total - used, total]
    assert other.info() == [0, total - used, total]
    assert worker.out("cuDeviceTotalMem_v2", 0) == [0, total]
    assert worker.nvml() == [[0, total, used, total - used]] * 2


def test_nvml_alone_knows_the_limit(ground: Ground) -> None:
    ground.worker("4147m").alloc(GIB)
    viewer = ground.worker("4147m", device=None)
    total = 4147 * MIB
    assert viewer.nvml() == [[0, total, GIB + CONTEXT, total - GIB - CONTEXT]] * 2


def test_free_is_never_more_than_the_card_has(ground: Ground) -> None:
    ground.bare().alloc(14 * GIB)
    worker = ground.worker("4147m")
    bare_free = ground.card.truth()[0]["free_bytes"]
    assert worker.info() == [0, bare_free, 4147 * MIB]
    assert worker.nvml()[0][3] == bare_free


def test_a_limit_above_the_card_shows_the_card(ground: Ground) -> None:
    worker, bare = ground.worker("1t"), ground.bare()
    assert worker.info()[2] == bare.info()[2]
    assert worker.out("cuDeviceTotalMem_v2", 0) == bare.out("cuDeviceTotalMem_v2", 0)


def test_without_a_limit_the_driver_answers(ground: Ground) -> None:
    worker, bare = ground.worker(None), ground.bare()
    assert worker.info() == bare.info()
    assert worker.nvml() == bare.nvml()


def test_limits_are_per_device(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("T4", "T4")
    env = {"CUDA_DEVICE_MEMORY_LIMIT_1": "600m"}
    first, second = ground.worker("300m", device=0, env=env), ground.worker("300m", device=1, env=env)
    assert first.info()[2] == 300 * MIB
    assert second.info()[2] == 600 * MIB
    assert first.fill(2 * MIB) == 99
    assert second.fill(2 * MIB) == 249
    assert [ground.held(card=i) for i in (0, 1)] == [300 * MIB, 600 * MIB]
    assert [ground.ledger(device=i)["used"] for i in (0, 1)] == [300 * MIB, 600 * MIB]


@pytest.mark.parametrize("visible", ["1,0", "1"])
def test_a_device_is_itself_whatever_its_ordinal(make_ground: Callable[..., Ground], visible: str) -> None:
    """CUDA_VISIBLE_DEVICES reorders CUDA's ordinals; limits, region and messages count as NVML does."""
    ground = make_ground("T4", "T4")
    worker = ground.worker("300m", env={"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_MEMORY_LIMIT_1": "600m"})
    assert worker.info()[2] == 600 * MIB
    assert worker.alloc(GIB)[0] == OOM
    assert "Device 1 OOM" in worker.stderr()
    assert ground.held(card=1) == CONTEXT == ground.ledger(device=1)["used"]
    assert ground.ledger(device=0)["used"] == 0


def test_unified_memory_cards_take_their_total_from_cuda(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("GB10")
    worker = ground.worker("2200m")
    assert worker.info()[2] == 2200 * MIB
    assert [worker.alloc(GIB)[0] for _ in range(3)][-1] == OOM
    assert ground.ledger()["physical"] > 2200 * MIB
