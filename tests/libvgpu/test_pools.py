"""Memory pools: charged what they have reserved, used or kept."""

from __future__ import annotations

import random
from collections.abc import Callable

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB
THRESHOLD, RESERVED = 4, 5
FOREVER = 2**64 - 1


def agree(ground: Ground) -> int:
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


def test_allocations_in_stream_order_stop_at_the_limit(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert [worker.out("cuMemAllocAsync", GIB, 0)[0] for _ in range(3)] == [0, 0, OOM]
    assert agree(ground) == 2 * GIB + CONTEXT
    assert "Device 0 OOM 3328180224 / 2306867200" in worker.stderr()


def test_what_a_pool_gives_back_when_the_program_waits_is_free_again(ground: Ground) -> None:
    worker = ground.worker("2200m")
    address = worker.out("cuMemAllocAsync", GIB, 0)[1]
    assert worker.call("cuMemFreeAsync", address, 0) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuStreamSynchronize", 0) == 0
    assert agree(ground) == CONTEXT


def test_what_a_pool_keeps_counts_until_it_is_trimmed(ground: Ground) -> None:
    worker = ground.worker("2200m")
    pool = worker.out("cuDeviceGetDefaultMemPool", 0)[1]
    assert worker.pool_set(pool, THRESHOLD, FOREVER) == 0
    address = worker.out("cuMemAllocAsync", GIB, 0)[1]
    worker.call("cuMemFreeAsync", address, 0)
    worker.call("cuCtxSynchronize")
    assert agree(ground) == GIB + CONTEXT
    assert worker.alloc(GIB + 512 * MIB)[0] == OOM
    assert worker.out("cuMemAllocAsync", GIB, 0)[0] == 0, "what the pool keeps can be used again"
    assert agree(ground) == GIB + CONTEXT
    worker.call("cuMemFreeAsync", address, 0)
    assert worker.call("cuMemPoolTrimTo", pool, 0) == 0
    assert agree(ground) == CONTEXT


def test_a_full_quota_still_serves_from_what_the_pool_keeps(ground: Ground) -> None:
    worker = ground.worker("2150m")
    pool = worker.out("cuDeviceGetDefaultMemPool", 0)[1]
    worker.pool_set(pool, THRESHOLD, FOREVER)
    address = worker.out("cuMemAllocAsync", 2 * GIB, 0)[1]
    worker.call("cuMemFreeAsync", address, 0)
    assert worker.out("cuMemAllocAsync", 2 * GIB, 0)[0] == 0
    assert worker.out("cuMemAllocAsync", GIB, 0)[0] == OOM
    assert agree(ground) == 2 * GIB + CONTEXT


def test_explicit_and_device_set_pools_are_charged(ground: Ground) -> None:
    worker = ground.worker("2200m")
    result, pool = worker.pool_create()
    assert result == 0
    assert worker.out("cuMemAllocFromPoolAsync", GIB, pool, 0)[0] == 0
    assert worker.call("cuDeviceSetMemPool", 0, pool) == 0
    assert worker.out("cuMemAllocAsync", GIB, 0)[0] == 0
    assert worker.out("cuMemAllocAsync", GIB, 0)[0] == OOM
    assert worker.out("cuMemAllocFromPoolAsync", GIB, pool, 0)[0] == OOM
    assert agree(ground) == 2 * GIB + CONTEXT


def test_a_destroyed_pool_counts_until_its_last_allocation_is_freed(ground: Ground) -> None:
    worker = ground.worker("2200m")
    pool = worker.pool_create()[1]
    first = worker.out("cuMemAllocFromPoolAsync", GIB, pool, 0)[1]
    second = worker.out("cuMemAllocFromPoolAsync", 512 * MIB, pool, 0)[1]
    assert worker.call("cuMemPoolDestroy", pool) == 0
    assert agree(ground) == GIB + 512 * MIB + CONTEXT
    worker.call("cuMemFreeAsync", first, 0)
    worker.call("cuMemFreeAsync", second, 0)
    assert agree(ground) == CONTEXT


def test_host_pools_are_not_charged(ground: Ground) -> None:
    worker = ground.worker("202m")
    result, pool = worker.pool_create(0, 2)
    assert result == 0
    assert worker.out("cuMemAllocFromPoolAsync", 300 * MIB, pool, 0)[0] == 0
    assert agree(ground) == CONTEXT


def test_small_requests_of_a_pool_share_blocks(ground: Ground) -> None:
    worker = ground.worker("106m")
    granted = 0
    while worker.out("cuMemAllocAsync", 1000, 0)[0] == 0:
        granted += 1
    assert granted == 2 * 2 * MIB // 1024
    assert agree(ground) == 106 * MIB


def test_pools_that_grow_in_large_steps_are_charged_what_they_reserve(make_ground: Callable[..., Ground]) -> None:
    """As on an H200, by 32 MiB: a request that makes a pool grow beyond the quota is refused, whatever its size."""
    ground = make_ground("H200")
    worker = ground.worker("1000m")
    chance = random.Random(7)  # noqa: S311 - a run that can be repeated
    held: list[int] = []
    refused = 0
    for _ in range(300):
        if held and chance.random() < 0.4:
            assert worker.call("cuMemFreeAsync", held.pop(chance.randrange(len(held))), 0) == 0
        else:
            result, address = worker.out("cuMemAllocAsync", chance.choice([1, MIB, 10 * MIB, 33 * MIB, 100 * MIB]), 0)
            refused += result == OOM
            held += [address] if result == 0 else []
        if chance.random() < 0.1:
            worker.call("cuStreamSynchronize", 0)
        assert agree(ground) <= 1000 * MIB
    assert refused
    for address in held:
        worker.call("cuMemFreeAsync", address, 0)
    worker.call("cuCtxSynchronize")
    assert agree(ground) == 518 * MIB
