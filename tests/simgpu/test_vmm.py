"""Physical memory and addresses apart: create, map, unmap, release, in any order, and between processes."""

from __future__ import annotations

import struct

import pytest

from tests.conftest import Card
from tests.simgpu.conftest import CONTEXT, INVALID_VALUE, MIB, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Out, Program, Run

READ_WRITE = struct.pack("<iii", 1, 0, 3)


def properties(*, handle_types: int = 0, location_type: int = 1) -> bytes:
    return struct.pack("<iiiiQQ", 1, handle_types, location_type, 0, 0, 0)


def create(program: Program, size: int, **kind: int) -> int:
    return program.number("cuMemCreate", Out(), size, properties(**kind), 0)


def reserve_and_map(program: Program, handle: int, size: int) -> int:
    address = program.number("cuMemAddressReserve", Out(), size, 0, 0, 0)
    program.outputs("cuMemMap", address, size, 0, handle, 0)
    program.outputs("cuMemSetAccess", address, size, READ_WRITE, 1)
    return address


@pytest.mark.parametrize("release_first", [True, False])
def test_memory_lives_until_released_and_unmapped(run: Run, release_first: bool) -> None:
    program = run()
    handle = create(program, 64 * MIB)
    address = reserve_and_map(program, handle, 64 * MIB)
    assert program.data() == 64 * MIB
    last: list[tuple[object, ...]] = [("cuMemRelease", handle), ("cuMemUnmap", address, 64 * MIB)]
    first, second = last if release_first else last[::-1]
    program.outputs(first[0], *first[1:])  # type: ignore[arg-type]
    assert program.data() == 64 * MIB
    program.outputs(second[0], *second[1:])  # type: ignore[arg-type]
    assert program.data() == 0
    program.outputs("cuMemAddressFree", address, 64 * MIB)


def test_retained_handle_keeps_the_memory(run: Run) -> None:
    program = run()
    handle = create(program, 4 * MIB)
    address = reserve_and_map(program, handle, 4 * MIB)
    assert program.number("cuMemRetainAllocationHandle", Out(), address + MIB) == handle
    program.outputs("cuMemRelease", handle)
    program.outputs("cuMemUnmap", address, 4 * MIB)
    assert program.data() == 4 * MIB
    program.outputs("cuMemRelease", handle)
    assert program.data() == 0
    assert program.code("cuMemRelease", handle) == INVALID_VALUE


def test_data_belongs_to_the_memory_not_to_the_address(run: Run) -> None:
    program = run()
    handle = create(program, 4 * MIB)
    first = reserve_and_map(program, handle, 4 * MIB)
    program.outputs("cuMemsetD8_v2", first, 77, 4 * MIB)
    second = reserve_and_map(program, handle, 4 * MIB)
    assert program.outputs("cuMemcpyDtoH_v2", Out(50), second + 2 * MIB, 50)[0] == b"M" * 50
    program.outputs("cuMemUnmap", first, 4 * MIB)
    assert program.code("cuMemcpyDtoH_v2", Out(50), first, 50) == INVALID_VALUE
    assert program.data() == 4 * MIB


def test_addresses_cost_nothing(run: Run) -> None:
    program = run()
    address = program.number("cuMemAddressReserve", Out(), 1 << 40, 0, 0, 0)
    assert program.data() == 0
    assert program.code("cuMemsetD8_v2", address, 1, 1) == INVALID_VALUE
    program.outputs("cuMemAddressFree", address, 1 << 40)


def test_reservation_is_filled_piece_by_piece(run: Run) -> None:
    program = run()
    address = program.number("cuMemAddressReserve", Out(), 64 * MIB, 0, 0, 0)
    for piece in (0, 2, 1):
        handle = create(program, 2 * MIB)
        program.outputs("cuMemMap", address + piece * 2 * MIB, 2 * MIB, 0, handle, 0)
        program.outputs("cuMemRelease", handle)
    assert program.code("cuMemMap", address, 2 * MIB, 0, create(program, 2 * MIB), 0) == INVALID_VALUE
    program.outputs("cuMemSetAccess", address, 6 * MIB, READ_WRITE, 1)
    assert program.code("cuMemSetAccess", address, 8 * MIB, READ_WRITE, 1) == INVALID_VALUE
    program.outputs("cuMemsetD8_v2", address, 1, 6 * MIB)
    assert program.code("cuMemUnmap", address + MIB, 2 * MIB) == INVALID_VALUE
    assert program.code("cuMemAddressFree", address, 64 * MIB) == INVALID_VALUE
    program.outputs("cuMemUnmap", address, 6 * MIB)
    assert program.data() == 2 * MIB  # the one that was never mapped


def test_sizes_are_multiples_of_the_granularity(run: Run) -> None:
    program = run()
    assert program.number("cuMemGetAllocationGranularity", Out(), properties(), 0) == 2 * MIB
    assert program.code("cuMemCreate", Out(), 3 * MIB, properties(), 0) == INVALID_VALUE
    assert program.code("cuMemCreate", Out(), 0, properties(), 0) == INVALID_VALUE
    assert program.code("cuMemCreate", Out(), 16384 * MIB, properties(), 0) == OUT_OF_MEMORY
    assert program.code("cuMemCreate", Out(), 2 * MIB, properties(handle_types=8), 0) == NOT_SUPPORTED
    assert program.data() == 0


@pytest.mark.parametrize("location_type", [2, 3, 4])
def test_host_locations_take_nothing_of_the_card(run: Run, location_type: int) -> None:
    program = run()
    create(program, 64 * MIB, location_type=location_type)
    assert program.data() == 0


def test_exported_memory_lives_until_its_last_user(run: Run, card: Card) -> None:
    """Whoever lives is charged: the exporter, after its death the importer."""
    exporter, importer = run(), run()
    handle = create(exporter, 8 * MIB, handle_types=1)
    exporter.outputs("cuMemsetD8_v2", reserve_and_map(exporter, handle, 8 * MIB), 5, MIB)
    descriptor = exporter.number("cuMemExportToShareableHandle", Out(4), handle, 1, 0)
    own = importer.ask("open", f"/proc/{exporter.pid}/fd/{descriptor}")
    imported = importer.number("cuMemImportFromShareableHandle", Out(), own, 1)
    address = reserve_and_map(importer, imported, 8 * MIB)
    assert importer.outputs("cuMemcpyDtoH_v2", Out(9), address, 9)[0] == b"\5" * 9
    assert card.truth()[0]["used_bytes"] == 2 * CONTEXT + 8 * MIB
    assert (exporter.data(), importer.data()) == (8 * MIB, 0)
    exporter.kill()
    assert importer.data() == 8 * MIB
    importer.outputs("cuMemUnmap", address, 8 * MIB)
    importer.outputs("cuMemRelease", imported)
    assert card.truth()[0]["used_bytes"] == CONTEXT


def test_not_exportable_unless_asked_for(run: Run) -> None:
    program = run()
    assert program.code("cuMemExportToShareableHandle", Out(4), create(program, 2 * MIB), 1, 0) == INVALID_VALUE


def test_multicast_holds_what_is_bound_to_it(run: Run, make_card: object) -> None:
    program = run(on=make_card("H100", "H100"))  # type: ignore[operator]
    multicast = program.number("cuMulticastCreate", Out(), struct.pack("<I4xQQQ", 2, 4 * MIB, 0, 0))
    handle = create(program, 4 * MIB)
    assert program.code("cuMulticastBindMem", multicast, 0, handle, 0, 4 * MIB, 0) == INVALID_VALUE
    program.outputs("cuMulticastAddDevice", multicast, 0)
    program.outputs("cuMulticastBindMem", multicast, 0, handle, 0, 4 * MIB, 0)
    program.outputs("cuMemRelease", handle)
    assert program.data() == 4 * MIB
    program.outputs("cuMulticastUnbind", multicast, 0, 0, 4 * MIB)
    assert program.data() == 0


def test_tiles_of_a_sparse_array_hold_their_memory(run: Run) -> None:
    program = run()
    array = program.number("cuArray3DCreate_v2", Out(), struct.pack("<QQQiII4x", 4096, 4096, 0, 0x20, 1, 0x40))
    assert program.data() == 0
    handle = create(program, 2 * MIB)
    tile = struct.pack("<i4xQi4x8I", 0, array, 0, 0, 0, 0, 0, 0, 64, 256, 1)
    program.outputs("cuMemMapArrayAsync", tile + struct.pack("<iiQQIIQ", 1, 0, handle, 0, 1, 0, 0), 1, None)
    program.outputs("cuMemRelease", handle)
    assert program.data() == 2 * MIB
    program.outputs("cuMemMapArrayAsync", tile + struct.pack("<iiQQIIQ", 2, 0, 0, 0, 1, 0, 0), 1, None)
    assert program.data() == 0
    assert program.code("cuArrayDestroy", array) == SUCCESS
