"""Virtual memory management: memory counts from cuMemCreate to the last release or unmap, in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from .conftest import GIB, MIB, OOM, Ground, Worker

CONTEXT = 102 * MIB


def agree(ground: Ground) -> int:
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


def mapped(worker: Worker, size: int) -> tuple[int, int]:
    result, handle = worker.vmm_create(size)
    assert result == 0
    address = worker.vmm_reserve(size)[1]
    assert worker.call("cuMemMap", address, size, 0, handle, 0) == 0
    return handle, address


def test_create_stops_at_the_limit(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert [worker.vmm_create(GIB)[0] for _ in range(3)] == [0, 0, OOM]
    assert agree(ground) == 2 * GIB + CONTEXT


def test_mapped_memory_lives_until_it_is_unmapped(ground: Ground) -> None:
    worker = ground.worker("2200m")
    handle, address = mapped(worker, GIB)
    assert worker.call("cuMemRelease", handle) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuMemUnmap", address, GIB) == 0
    assert agree(ground) == CONTEXT


@pytest.mark.parametrize("order", list(itertools.permutations(("release", "unmap", "release again"))), ids=str)
def test_retained_memory_is_given_back_at_the_last_of_all(ground: Ground, order: tuple[str, ...]) -> None:
    worker = ground.worker("2200m")
    handle, address = mapped(worker, GIB)
    result, again = worker.out("cuMemRetainAllocationHandle", address + 4 * MIB)
    assert result == 0
    steps = {
        "release": ("cuMemRelease", handle),
        "release again": ("cuMemRelease", again),
        "unmap": ("cuMemUnmap", address, GIB),
    }
    for name in order:
        assert agree(ground) == GIB + CONTEXT
        assert worker.call(*steps[name]) == 0
    assert agree(ground) == CONTEXT


def test_one_unmap_may_undo_several_mappings(ground: Ground) -> None:
    worker = ground.worker("2200m")
    address = worker.vmm_reserve(64 * MIB)[1]
    for i in range(4):
        handle = worker.vmm_create(16 * MIB)[1]
        assert worker.call("cuMemMap", address + 16 * MIB * i, 16 * MIB, 0, handle, 0) == 0
        assert worker.call("cuMemRelease", handle) == 0
    assert agree(ground) == 64 * MIB + CONTEXT
    assert worker.call("cuMemUnmap", address, 64 * MIB) == 0
    assert agree(ground) == CONTEXT


def test_released_too_often_gives_back_once(ground: Ground) -> None:
    worker = ground.worker("2200m")
    keep = worker.vmm_create(GIB)[1]
    handle = worker.vmm_create(512 * MIB)[1]
    assert worker.call("cuMemRelease", handle) == 0
    assert worker.call("cuMemRelease", handle) != 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuMemRelease", keep) == 0
    assert agree(ground) == CONTEXT


def test_host_locations_and_addresses_are_not_charged(ground: Ground) -> None:
    worker = ground.worker("202m")
    assert worker.vmm_create(512 * MIB, 0, 2)[0] == 0
    assert worker.vmm_reserve(64 * GIB)[0] == 0
    assert agree(ground) == CONTEXT


def test_tiles_of_sparse_arrays_hold_their_memory(ground: Ground) -> None:
    worker = ground.worker("2200m")
    array = worker.array(8192, 8192, 0, 4, 0x40)[1]
    first, second = (worker.vmm_create(256 * MIB)[1] for _ in range(2))
    assert worker.map_tile(array, 0, first) == 0
    assert worker.map_tile(array, 1, first) == 0
    assert worker.map_tile(array, 2, second) == 0
    assert worker.call("cuMemRelease", first) == 0
    assert worker.call("cuMemRelease", second) == 0
    assert agree(ground) == 512 * MIB + CONTEXT
    assert worker.map_tile(array, 0, 0) == 0
    assert worker.map_tile(array, 2, 0) == 0
    assert agree(ground) == 256 * MIB + CONTEXT
    assert worker.call("cuArrayDestroy", array) == 0
    assert agree(ground) == CONTEXT


def test_what_is_bound_to_a_multicast_object_lives_as_long(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("H100")
    worker = ground.worker("4g")
    context = agree(ground)
    prop = [1, GIB, 0, 0]
    result, group = worker.multicast(*prop)
    assert result == 0
    assert worker.call("cuMulticastAddDevice", group, 0) == 0
    handle = worker.vmm_create(GIB)[1]
    assert worker.call("cuMulticastBindMem", group, 0, handle, 0, GIB, 0) == 0
    assert worker.call("cuMemRelease", handle) == 0
    assert agree(ground) == GIB + context
    assert worker.call("cuMulticastUnbind", group, 0, 0, GIB) == 0
    assert agree(ground) == context
    handle = worker.vmm_create(GIB)[1]
    worker.call("cuMulticastBindMem", group, 0, handle, 0, GIB, 0)
    worker.call("cuMemRelease", handle)
    assert worker.call("cuMemRelease", group) == 0
    assert agree(ground) == context
