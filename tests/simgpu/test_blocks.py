"""The card gives memory in blocks of 2 MiB; smaller requests share blocks."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.simgpu.conftest import BLOCK, CONTEXT, GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Out, Run


@pytest.mark.parametrize(
    ("size", "charged"),
    [
        (1, BLOCK),
        (MIB - 1, BLOCK),
        (MIB, BLOCK),
        (MIB + 1, BLOCK),
        (BLOCK, BLOCK),
        (BLOCK + 1, 2 * BLOCK),
        (GIB, GIB),
        (GIB + 1, GIB + BLOCK),
    ],
)
def test_request_takes_whole_blocks(run: Run, size: int, charged: int) -> None:
    program = run()
    pointer = program.alloc(size)
    assert program.held() | {"pid": 0, "ns_pid": 0} == {
        "pid": 0,
        "ns_pid": 0,
        "used_bytes": CONTEXT + charged,
        "context_bytes": CONTEXT,
        "module_bytes": 0,
        "data_bytes": charged,
        "contexts": 1,
        "allocations": 1,
        "launches": 0,
    }
    program.free(pointer)
    assert program.data() == 0


def test_small_requests_share_a_block(run: Run) -> None:
    program = run()
    pointers = [program.alloc(1000) for _ in range(2048)]
    assert program.data() == BLOCK
    assert len({p % 512 for p in pointers}) == 1
    pointers.append(program.alloc(1000))
    assert program.data() == 2 * BLOCK
    for pointer in pointers[1:]:
        program.free(pointer)
    assert program.data() == BLOCK
    program.free(pointers[0])
    assert program.data() == 0


def test_requests_up_to_a_mebibyte_share(run: Run) -> None:
    program = run()
    for _ in range(20):
        program.alloc(MIB)
    assert program.data() == 20 * MIB
    for _ in range(3):
        program.alloc(MIB + 1)
    assert program.data() == 26 * MIB


def test_small_and_large_never_overlap(run: Run) -> None:
    """Whatever is freed in whatever order, no two live allocations share a byte, and the data of each stays."""
    program, dice = run(), random.Random(7)  # noqa: S311
    live: dict[int, tuple[int, int]] = {}
    for step in range(400):
        if live and dice.random() < 0.45:
            pointer = dice.choice(list(live))
            size, value = live.pop(pointer)
            head = program.outputs("cuMemcpyDtoH_v2", Out(min(size, 64)), pointer, min(size, 64))[0]
            assert set(head) == {value}
            program.free(pointer)
        else:
            size = dice.choice([1, 511, 512, 513, 4096, 70000, 300000, MIB - 1, MIB, 3 * MIB])
            pointer = program.alloc(size)
            live[pointer] = (size, step % 255 + 1)
            program.outputs("cuMemsetD8_v2", pointer, step % 255 + 1, size)
    ends = sorted((pointer, pointer + size) for pointer, (size, _) in live.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    for pointer in live:
        program.free(pointer)
    assert program.data() == 0


def test_processes_do_not_share_blocks(run: Run) -> None:
    one, two = run(), run()
    one.alloc(1000)
    two.alloc(1000)
    assert (one.data(), two.data()) == (BLOCK, BLOCK)


def test_the_last_block_is_granted_and_the_next_is_not(run: Run) -> None:
    program = run()
    free = int.from_bytes(program.outputs("cuMemGetInfo_v2", Out(), Out())[0], "little")
    assert free == 15360 * MIB - CONTEXT
    pointer = program.alloc(free)
    assert program.code("cuMemAlloc_v2", Out(), 1) == OUT_OF_MEMORY
    assert program.card.truth()[0]["free_bytes"] == 0
    program.free(pointer)
    assert program.code("cuMemAlloc_v2", Out(), free + 1) == OUT_OF_MEMORY
    assert program.data() == 0


def test_pitch_rounds_rows(run: Run) -> None:
    program = run()
    _, pitch = program.outputs("cuMemAllocPitch_v2", Out(), Out(), 1000, 3000, 4)
    assert int.from_bytes(pitch, "little") == 1024
    assert program.data() == 4 * MIB  # 1024 * 3000 bytes
    assert program.code("cuMemAllocPitch_v2", Out(), Out(), 1000, 3000, 5) == INVALID_VALUE


def test_wrong_values_are_refused_as_such(run: Run) -> None:
    program = run()
    pointer = program.alloc(MIB)
    assert program.code("cuMemAlloc_v2", None, MIB) == INVALID_VALUE
    assert program.code("cuMemAlloc_v2", Out(), 0) == INVALID_VALUE
    assert program.code("cuMemAlloc_v2", Out(), 1 << 63) == OUT_OF_MEMORY
    assert program.code("cuMemFree_v2", pointer + 512) == INVALID_VALUE
    assert program.code("cuMemFree_v2", 0x1234) == INVALID_VALUE
    assert program.code("cuMemFree_v2", 0) == SUCCESS
    program.free(pointer)
    assert program.code("cuMemFree_v2", pointer) == INVALID_VALUE


def test_oldest_functions_give_32_bit_addresses(run: Run) -> None:
    program = run()
    pointer = program.number("cuMemAlloc", Out(4), 3 * MIB)
    assert 0 < pointer < 1 << 32
    assert program.data() == 4 * MIB
    program.outputs("cuMemsetD8", pointer, 5, 16)
    assert program.outputs("cuMemcpyDtoH", Out(16), pointer, 16)[0] == b"\5" * 16
    program.outputs("cuMemFree", pointer)
    assert program.data() == 0


def test_address_range_tells_the_whole_allocation(run: Run) -> None:
    program = run()
    small, large = program.alloc(5000), program.alloc(5 * MIB)
    for pointer, size in ((small, 5000), (large, 5 * MIB)):
        base, length = program.outputs("cuMemGetAddressRange_v2", Out(), Out(), pointer + size // 2)
        assert (int.from_bytes(base, "little"), int.from_bytes(length, "little")) == (pointer, size)
    assert program.code("cuMemGetAddressRange_v2", Out(), Out(), small + 100000) != SUCCESS


def test_managed_memory_is_charged_when_the_card_touches_it(run: Run) -> None:
    program = run()
    pointer = program.number("cuMemAllocManaged", Out(), 20 * GIB, 1)
    program.ask("write", pointer + 100, "from the host")
    assert program.data() == 0
    assert program.outputs("cuMemcpyDtoH_v2", Out(13), pointer + 100, 13)[0] == b"from the host"
    program.outputs("cuMemPrefetchAsync", pointer, 8 * MIB, 0, None)
    assert program.data() == 8 * MIB
    program.outputs("cuMemPrefetchAsync", pointer, 20 * GIB, 0, None)
    assert program.data() == 15360 * MIB - CONTEXT  # what fits; the rest stays with the host
    program.outputs("cuMemPrefetchAsync", pointer, 20 * GIB, -1, None)
    assert program.data() == 0
    program.free(pointer)


def test_host_memory_is_not_the_cards(run: Run) -> None:
    program = run()
    pinned = program.number("cuMemHostAlloc", Out(), 64 * MIB, 2)
    assert program.number("cuMemHostGetDevicePointer_v2", Out(), pinned, 0) == pinned
    assert program.data() == 0
    program.outputs("cuMemFreeHost", pinned)
    assert program.code("cuMemFreeHost", pinned) == INVALID_VALUE
