"""Pools keep what is freed until they are trimmed or the program synchronises."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.conftest import Card
from tests.simgpu.conftest import CONTEXT, GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Out, Program, Run

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8


def properties(*, handle_types: int = 0, location_type: int = 1, max_bytes: int = 0) -> bytes:
    return struct.pack("<iiiiQQ56x", 1, handle_types, location_type, 0, 0, max_bytes)


def attribute(program: Program, pool: int, which: int) -> int:
    return program.number("cuMemPoolGetAttribute", pool, which, Out())


def keep_all(program: Program, pool: int) -> None:
    program.outputs("cuMemPoolSetAttribute", pool, THRESHOLD, struct.pack("<Q", (1 << 64) - 1))


def test_default_pool_keeps_until_the_program_synchronises(run: Run) -> None:
    program = run()
    pointer = program.number("cuMemAllocAsync", Out(), 100 * MIB, None)
    assert program.data() == 100 * MIB
    program.outputs("cuMemFreeAsync", pointer, None)
    assert program.data() == 100 * MIB
    program.outputs("cuStreamSynchronize", None)
    assert program.data() == 0


@pytest.mark.parametrize("synchronise", ["cuCtxSynchronize", "cuStreamSynchronize"])
def test_threshold_is_kept_over_a_synchronisation(run: Run, synchronise: str) -> None:
    program = run()
    pool = program.number("cuDeviceGetDefaultMemPool", Out(), 0)
    program.outputs("cuMemPoolSetAttribute", pool, THRESHOLD, struct.pack("<Q", 10 * MIB))
    pointer = program.number("cuMemAllocAsync", Out(), 100 * MIB, None)
    program.outputs("cuMemFreeAsync", pointer, None)
    program.outputs(synchronise, None)
    assert program.data() == 10 * MIB
    program.outputs("cuMemPoolTrimTo", pool, 0)
    assert program.data() == 0


def test_freed_memory_serves_the_next_request(run: Run) -> None:
    """Of any size: a pool maps its blocks wherever it likes."""
    program = run()
    for size in (64 * MIB, 10 * MIB, 30 * MIB, 100, 24 * MIB):
        pointer = program.number("cuMemAllocAsync", Out(), size, None)
        program.outputs("cuMemFreeAsync", pointer, None)
    assert program.data() == 64 * MIB


def test_attributes_tell_reserved_and_used(run: Run) -> None:
    program = run()
    pool = program.number("cuMemPoolCreate", Out(), properties())
    keep_all(program, pool)
    pointer = program.number("cuMemAllocFromPoolAsync", Out(), 5 * MIB, pool, None)
    small = program.number("cuMemAllocFromPoolAsync", Out(), 1000, pool, None)
    assert [attribute(program, pool, a) for a in (RESERVED, USED)] == [8 * MIB, 5 * MIB + 1024]
    program.outputs("cuMemFreeAsync", pointer, None)
    program.outputs("cuMemFree_v2", small)
    assert [attribute(program, pool, a) for a in (RESERVED, USED)] == [8 * MIB, 0]
    assert [attribute(program, pool, a) for a in (RESERVED_HIGH, USED_HIGH)] == [8 * MIB, 5 * MIB + 1024]
    assert program.data() == 8 * MIB
    program.outputs("cuMemPoolDestroy", pool)
    assert program.data() == 0
    assert program.code("cuMemPoolTrimTo", pool, 0) == INVALID_VALUE


def test_destroyed_pool_lives_until_its_last_allocation(run: Run) -> None:
    program = run()
    pool = program.number("cuMemPoolCreate", Out(), properties())
    pointer = program.number("cuMemAllocFromPoolAsync", Out(), 6 * MIB, pool, None)
    program.outputs("cuMemPoolDestroy", pool)
    assert program.data() == 6 * MIB
    assert program.code("cuMemAllocFromPoolAsync", Out(), MIB, pool, None) == INVALID_VALUE
    program.outputs("cuMemFreeAsync", pointer, None)
    assert program.data() == 0


def test_pool_set_for_the_device_serves_plain_requests(run: Run) -> None:
    program = run()
    pool = program.number("cuMemPoolCreate", Out(), properties())
    program.outputs("cuDeviceSetMemPool", 0, pool)
    assert program.number("cuDeviceGetMemPool", Out(), 0) == pool
    program.number("cuMemAllocAsync", Out(), 4 * MIB, None)
    assert attribute(program, pool, RESERVED) == 4 * MIB


def test_pool_has_a_size_it_does_not_exceed(run: Run) -> None:
    program = run()
    pool = program.number("cuMemPoolCreate", Out(), properties(max_bytes=10 * MIB))
    program.number("cuMemAllocFromPoolAsync", Out(), 8 * MIB, pool, None)
    assert program.code("cuMemAllocFromPoolAsync", Out(), 4 * MIB, pool, None) == OUT_OF_MEMORY
    assert program.data() == 8 * MIB


def test_what_does_not_fit_is_refused(run: Run) -> None:
    program = run()
    assert program.code("cuMemAllocAsync", Out(), 16 * GIB, None) == OUT_OF_MEMORY
    assert program.code("cuMemAllocAsync", Out(), 0, None) == INVALID_VALUE
    assert program.code("cuMemAllocAsync", Out(), 15360 * MIB - CONTEXT, None) == SUCCESS
    assert program.code("cuMemAllocAsync", Out(), 1, None) == OUT_OF_MEMORY


def test_host_pool_takes_nothing_of_the_card(run: Run) -> None:
    program = run()
    pool = program.number("cuMemPoolCreate", Out(), properties(location_type=2))
    program.number("cuMemAllocFromPoolAsync", Out(), 64 * MIB, pool, None)
    assert program.data() == 0


def test_context_takes_its_pool_memory_along(run: Run) -> None:
    program = run()
    pool = program.number("cuDeviceGetDefaultMemPool", Out(), 0)
    keep_all(program, pool)
    program.number("cuMemAllocAsync", Out(), 4 * MIB, None)
    program.number("cuMemAllocAsync", Out(), 100, None)
    program.outputs("cuDevicePrimaryCtxReset_v2", 0)
    assert program.data() == 0


def test_exported_pool_allocation_lives_until_its_last_user(run: Run) -> None:
    exporter, importer = run(), run()
    pool = exporter.number("cuMemPoolCreate", Out(), properties(handle_types=1))
    descriptor = exporter.number("cuMemPoolExportToShareableHandle", Out(4), pool, 1, 0)
    pointer = exporter.number("cuMemAllocFromPoolAsync", Out(), 10 * MIB, pool, None)
    exporter.outputs("cuMemsetD8_v2", pointer, 9, 100)
    [ticket] = exporter.outputs("cuMemPoolExportPointer", Out(64), pointer)

    own = importer.ask("open", f"/proc/{exporter.pid}/fd/{descriptor}")
    imported_pool = importer.number("cuMemPoolImportFromShareableHandle", Out(), own, 1, 0)
    imported = importer.number("cuMemPoolImportPointer", Out(), imported_pool, ticket)
    assert importer.outputs("cuMemcpyDtoH_v2", Out(100), imported, 100)[0] == b"\t" * 100
    assert importer.code("cuMemAllocFromPoolAsync", Out(), MIB, imported_pool, None) == INVALID_VALUE
    assert (exporter.data(), importer.data()) == (10 * MIB, 0)

    exporter.outputs("cuMemFreeAsync", pointer, None)
    assert (exporter.data(), importer.data()) == (0, 10 * MIB)
    importer.outputs("cuMemFreeAsync", imported, None)
    assert importer.data() == 0


def test_pools_of_a_large_card_grow_in_large_steps(run: Run, make_card: Callable[..., Card]) -> None:
    """By 32 MiB, as measured on an H200: what the pool has reserved after each request, in MiB."""
    program = run(on=make_card("H200"))
    pool = program.number("cuDeviceGetDefaultMemPool", Out(), 0)
    keep_all(program, pool)
    pointers = []
    for size, reserved in ((1, 32), (MIB, 32), (33 * MIB, 64), (100 * MIB, 160), (1000 * MIB + 1, 1152)):
        pointers.append(program.number("cuMemAllocAsync", Out(), size, None))
        assert attribute(program, pool, RESERVED) == reserved * MIB == program.data()
    for pointer in pointers:
        program.outputs("cuMemFreeAsync", pointer, None)
    program.outputs("cuMemPoolTrimTo", pool, 40 * MIB)
    assert attribute(program, pool, RESERVED) == 64 * MIB == program.data()
