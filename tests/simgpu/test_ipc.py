"""Memory handed to another process lives until its last user is gone, and is charged to one that lives."""

from __future__ import annotations

from tests.conftest import Card
from tests.simgpu.conftest import BLOCK, CONTEXT, INVALID_CONTEXT, INVALID_VALUE, MIB, ByValue, Out, Program, Run


def export(program: Program, pointer: int) -> ByValue:
    return ByValue(program.outputs("cuIpcGetMemHandle", Out(64), pointer)[0])


def test_importer_sees_the_same_bytes(run: Run) -> None:
    exporter, importer = run(), run()
    pointer = exporter.alloc(3 * MIB)
    exporter.outputs("cuMemsetD8_v2", pointer, 65, 3 * MIB)
    there = importer.number("cuIpcOpenMemHandle_v2", Out(), export(exporter, pointer), 1)
    assert importer.outputs("cuMemcpyDtoH_v2", Out(20), there + 2 * MIB, 20)[0] == b"A" * 20
    importer.outputs("cuMemsetD8_v2", there, 66, 10)
    assert exporter.outputs("cuMemcpyDtoH_v2", Out(11), pointer, 11)[0] == b"B" * 10 + b"A"


def test_memory_outlives_its_exporter(run: Run, card: Card) -> None:
    exporter, importer = run(), run()
    handle = export(exporter, exporter.alloc(3 * MIB))
    there = importer.number("cuIpcOpenMemHandle_v2", Out(), handle, 1)
    assert (exporter.data(), importer.data()) == (4 * MIB, 0)
    exporter.kill()
    assert importer.data() == 4 * MIB
    importer.outputs("cuIpcCloseMemHandle", there)
    assert card.truth()[0]["used_bytes"] == CONTEXT


def test_memory_freed_by_its_exporter_lives_on_in_the_importer(run: Run) -> None:
    exporter, importer = run(), run()
    pointer = exporter.alloc(3 * MIB)
    there = importer.number("cuIpcOpenMemHandle_v2", Out(), export(exporter, pointer), 1)
    exporter.free(pointer)
    assert (exporter.data(), importer.data()) == (0, 4 * MIB)
    importer.kill()
    assert there
    assert importer.card.truth()[0]["used_bytes"] == CONTEXT


def test_importer_may_die_first(run: Run) -> None:
    exporter, importer = run(), run()
    pointer = exporter.alloc(3 * MIB)
    importer.number("cuIpcOpenMemHandle_v2", Out(), export(exporter, pointer), 1)
    importer.kill()
    assert exporter.data() == 4 * MIB
    exporter.free(pointer)
    assert exporter.data() == 0


def test_opened_twice_is_one_address_and_closed_twice(run: Run) -> None:
    exporter, importer = run(), run()
    pointer = exporter.alloc(3 * MIB)
    handle = export(exporter, pointer)
    first = importer.number("cuIpcOpenMemHandle_v2", Out(), handle, 1)
    assert importer.number("cuIpcOpenMemHandle", Out(), handle, 1) == first
    importer.outputs("cuIpcCloseMemHandle", first)
    exporter.free(pointer)
    assert importer.data() == 4 * MIB
    importer.outputs("cuIpcCloseMemHandle", first)
    assert importer.data() == 0
    assert importer.code("cuIpcCloseMemHandle", first) == INVALID_VALUE


def test_small_allocation_goes_over_with_its_block(run: Run) -> None:
    exporter, importer = run(), run()
    exporter.alloc(700)
    pointer = exporter.alloc(1000)
    exporter.outputs("cuMemsetD8_v2", pointer, 67, 1000)
    there = importer.number("cuIpcOpenMemHandle_v2", Out(), export(exporter, pointer), 1)
    assert importer.outputs("cuMemcpyDtoH_v2", Out(1000), there, 1000)[0] == b"C" * 1000
    exporter.kill()
    assert importer.data() == BLOCK


def test_no_process_opens_its_own_handle(run: Run) -> None:
    program = run()
    handle = export(program, program.alloc(MIB))
    assert program.code("cuIpcOpenMemHandle_v2", Out(), handle, 1) == INVALID_CONTEXT


def test_wrong_handles_are_refused(run: Run) -> None:
    exporter, importer = run(), run()
    pointer = exporter.alloc(MIB)
    handle = export(exporter, pointer)
    assert importer.code("cuIpcOpenMemHandle_v2", Out(), ByValue(bytes(64)), 1) == INVALID_VALUE
    assert importer.code("cuIpcOpenMemHandle_v2", Out(), handle, 0) == INVALID_VALUE
    exporter.free(pointer)
    assert importer.code("cuIpcOpenMemHandle_v2", Out(), handle, 1) == INVALID_VALUE
    managed = exporter.number("cuMemAllocManaged", Out(), MIB, 1)
    assert exporter.code("cuIpcGetMemHandle", Out(64), managed) == INVALID_VALUE


def test_chain_of_deaths_leaves_nothing(run: Run, card: Card) -> None:
    """Export, kill the owner, let the next one export anew, five times."""
    owner = run()
    owner.alloc(100 * MIB)
    for _ in range(5):
        heir = run()
        pointer = owner.alloc(10 * MIB)
        heir.number("cuIpcOpenMemHandle_v2", Out(), export(owner, pointer), 1)
        owner.kill()
        assert card.truth()[0]["used_bytes"] == CONTEXT + 10 * MIB
        owner = heir
        owner.outputs("cuDevicePrimaryCtxReset_v2", 0)
        assert owner.data() == 0
