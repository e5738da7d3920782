"""What cuMemAlloc and its like take: charged as the card charges, exactly up to the limit, given back once."""

from __future__ import annotations

import pytest

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB


def test_the_reference_case(ground: Ground) -> None:
    """4147 MiB: 3 GiB are granted, 2 GiB more are not, and the line on stderr says why."""
    worker = ground.worker("4147m")
    assert worker.alloc(3 * GIB)[0] == 0
    assert worker.alloc(2 * GIB)[0] == OOM
    assert "Device 0 OOM 5475663872 / 4348444672\n" in worker.stderr()
    assert ground.held(worker) == 3 * GIB + CONTEXT
    assert ground.ledger()["used"] == 3 * GIB + CONTEXT
    assert ground.ledger()["refusals"] == 1
    assert ground.ledger()["refused_largest"] == 2 * GIB


def test_the_last_block_that_fits_is_granted_and_the_next_is_not(ground: Ground) -> None:
    worker = ground.worker("302m")
    assert worker.fill(2 * MIB) == 100
    assert ground.held(worker) == 302 * MIB


@pytest.mark.parametrize(("size", "count"), [(MIB, 200), (MIB + 1, 100)])
def test_requests_above_1_mib_are_charged_in_whole_blocks(ground: Ground, size: int, count: int) -> None:
    worker = ground.worker("302m")
    assert worker.fill(size) == count
    assert ground.held(worker) == 302 * MIB == ground.ledger()["used"]


def test_small_requests_share_blocks_up_to_the_last_byte(ground: Ground) -> None:
    worker = ground.worker("112m")
    assert worker.fill(1000) == 5 * 2 * MIB // 1024
    assert ground.held(worker) == 112 * MIB == ground.ledger()["used"]


def test_a_full_quota_still_fills_the_blocks_that_are_begun(ground: Ground) -> None:
    worker = ground.worker("112m")
    worker.alloc(512)
    assert worker.fill(2 * MIB) == 4
    assert worker.fill(100 * 1024) > 10
    assert ground.held(worker) == 112 * MIB


def test_everything_comes_back(ground: Ground) -> None:
    worker = ground.worker("2200m")
    for size in (1, 512, 700 * 1024, MIB, 3 * MIB, GIB):
        addresses = [worker.alloc(size)[1] for _ in range(2 if size > MIB else 50)]
        assert ground.held() == ground.ledger()["used"]
        for address in addresses[::2] + addresses[1::2]:
            assert worker.call("cuMemFree_v2", address) == 0
        assert ground.held() == ground.ledger()["used"] == CONTEXT


def test_freed_twice_is_given_back_once(ground: Ground) -> None:
    worker = ground.worker("2200m")
    address = worker.alloc(GIB)[1]
    other = worker.alloc(GIB)[1]
    assert worker.call("cuMemFree_v2", address) == 0
    assert worker.call("cuMemFree_v2", address) != 0
    assert ground.ledger()["used"] == GIB + CONTEXT == ground.held()
    assert worker.call("cuMemFree_v2", other + 4096) != 0
    assert ground.ledger()["used"] == GIB + CONTEXT == ground.held()


def test_pitched_memory_is_charged_with_its_rows(ground: Ground) -> None:
    worker = ground.worker("2200m")
    for width, height in ((100, 10), (1000, 5000), (513, 8192)):
        result, address, _ = worker.pitch(width, height)
        assert result == 0
        assert ground.held() == ground.ledger()["used"]
        assert worker.call("cuMemFree_v2", address) == 0
        assert ground.held() == ground.ledger()["used"] == CONTEXT
    assert worker.pitch(GIB, 4)[0] == OOM


def test_managed_memory_is_charged_in_full_at_once(ground: Ground) -> None:
    worker = ground.worker("2200m")
    granted = worker.out("cuMemAllocManaged", GIB, 1)
    assert granted[0] == 0
    assert worker.out("cuMemAllocManaged", GIB, 1)[0] == 0
    assert worker.out("cuMemAllocManaged", GIB, 1)[0] == OOM
    assert worker.call("cuMemFree_v2", granted[1]) == 0
    assert worker.alloc(GIB)[0] == 0


def test_host_memory_is_not_charged(ground: Ground) -> None:
    worker = ground.worker("200m")
    assert worker.out("cuMemAllocHost_v2", 300 * MIB)[0] == 0
    assert worker.out("cuMemHostAlloc", 300 * MIB, 0)[0] == 0
    assert ground.ledger()["used"] == CONTEXT == ground.held()


def test_what_the_driver_refuses_is_given_back(ground: Ground) -> None:
    """The card is full before the quota is."""
    assert ground.bare().alloc(14 * GIB)[0] == 0
    worker = ground.worker("4147m")
    assert worker.alloc(3 * GIB)[0] == OOM
    assert ground.ledger()["used"] == CONTEXT == ground.held(worker)
    assert ground.ledger()["refusals"] == 0
    assert "OOM" not in worker.stderr()


def test_odd_arguments_get_the_drivers_own_answer(ground: Ground) -> None:
    worker, bare = ground.worker("2200m"), ground.bare()
    for call in (
        ["cuMemAlloc_v2", 0, 100],
        ["cuMemAllocManaged", 0, 100, 1],
        ["cuMemFree_v2", 0],
        ["cuMemFree_v2", 12345],
        ["cuMemAllocPitch_v2", 0, 0, 1, 1, 4],
        ["cuMemGetInfo_v2", 0, 0],
        ["cuDevicePrimaryCtxRelease_v2", 7],
        ["cuDeviceTotalMem_v2", 0, 0],
        ["cuMemCreate", 0, 100, 0, 0],
        ["cuCtxDestroy_v2", 0],
    ):
        assert worker.ask("call", *call) == bare.ask("call", *call), call
    for size in (0, 2**63, 2**64 - 1):
        assert (worker.alloc(size)[0] == 0) == (bare.alloc(size)[0] == 0)
    assert worker.out("cuDevicePrimaryCtxRetain", 9) == bare.out("cuDevicePrimaryCtxRetain", 9)
    assert ground.ledger()["used"] == CONTEXT


def test_before_cuinit_the_driver_answers_itself(ground: Ground) -> None:
    worker, bare = ground.worker("2200m", device=None), ground.bare(device=None)
    for call in (["cuMemAlloc_v2", 0, 100], ["cuMemFree_v2", 1], ["cuCtxSynchronize"]):
        assert worker.ask("call", *call) == bare.ask("call", *call)
    assert worker.alloc(100) == bare.alloc(100)
    assert not ground.region.exists()


def test_threads_never_pass_the_limit_together(ground: Ground) -> None:
    worker = ground.worker("152m")
    assert worker.threads(6, 20 * MIB, 200) > 0
    assert worker.threads(6, 4096, 200) == 1200
    assert ground.ledger()["used"] == CONTEXT == ground.held()


def test_errno_stays_as_it_was(ground: Ground) -> None:
    other = ground.worker("2200m")
    other.alloc(GIB)
    worker = ground.worker("2200m")
    assert worker.errno_after("alloc", GIB) == 77
    other.kill()
    assert worker.errno_after("alloc", 4 * GIB) == 77, "a look for the dead"
    assert worker.errno_after("fill", 1000, 5000) == 77
