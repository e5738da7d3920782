"""Arrays take what their tiled layout needs; mipmapped ones all their levels."""

from __future__ import annotations

import struct

import pytest

from tests.simgpu.conftest import BLOCK, INVALID_VALUE, MIB, OUT_OF_MEMORY, Out, Program, Run

UINT8, FLOAT, BC1 = 0x01, 0x20, 0x91
INVALID_HANDLE = 400


def flat(width: int, height: int, kind: int, channels: int) -> bytes:
    return struct.pack("<QQiI", width, height, kind, channels)


def deep(width: int, height: int, depth: int, kind: int, flags: int = 0) -> bytes:
    return struct.pack("<QQQiII4x", width, height, depth, kind, 1, flags)


@pytest.mark.parametrize(
    ("descriptor", "charged"),
    [
        (flat(1024, 1024, FLOAT, 4), 16 * MIB),
        (flat(1000, 1001, FLOAT, 1), 4 * MIB),  # rows of 4032 bytes, 1008 of them
        (flat(100, 0, UINT8, 1), BLOCK),
        (flat(4096, 4096, BC1, 1), 8 * MIB),
    ],
)
def test_array_takes_its_tiled_size(run: Run, descriptor: bytes, charged: int) -> None:
    program = run()
    array = program.number("cuArrayCreate_v2", Out(), descriptor)
    assert program.data() == charged
    program.outputs("cuArrayDestroy", array)
    assert program.data() == 0
    assert program.code("cuArrayDestroy", array) == INVALID_HANDLE


def test_volume_and_mipmaps(run: Run) -> None:
    program = run()
    volume = program.number("cuArray3DCreate_v2", Out(), deep(256, 256, 64, FLOAT))
    assert program.data() == 16 * MIB
    program.outputs("cuArrayDestroy", volume)
    mipmap = program.number("cuMipmappedArrayCreate", Out(), deep(2048, 2048, 0, FLOAT), 12)
    assert program.data() == 22 * MIB  # 16 MiB and a third, rounded up
    level = program.number("cuMipmappedArrayGetLevel", Out(), mipmap, 1)
    assert struct.unpack_from("<QQ", program.outputs("cuArray3DGetDescriptor_v2", Out(40), level)[0]) == (1024, 1024)
    assert program.code("cuArrayDestroy", level) == INVALID_HANDLE
    program.outputs("cuMipmappedArrayDestroy", mipmap)
    assert program.data() == 0


def test_array_keeps_its_data(run: Run) -> None:
    program = run()
    array = program.number("cuArrayCreate_v2", Out(), flat(100, 10, UINT8, 1))
    program.outputs("cuMemcpyHtoA_v2", array, 3, b"in the array", 12)
    assert program.outputs("cuMemcpyAtoH_v2", Out(12), array, 3, 12)[0] == b"in the array"


@pytest.mark.parametrize("flags", [0x40, 0x80])
def test_sparse_and_deferred_arrays_take_nothing(run: Run, flags: int) -> None:
    program = run()
    program.number("cuArray3DCreate_v2", Out(), deep(4096, 4096, 0, FLOAT, flags))
    assert program.data() == 0


def test_context_takes_its_arrays_along(run: Run) -> None:
    program = run()
    context = program.number("cuCtxCreate_v2", Out(), 0, 0)
    program.number("cuArrayCreate_v2", Out(), flat(1024, 1024, FLOAT, 4))
    program.number("cuMipmappedArrayCreate", Out(), deep(1024, 1024, 0, FLOAT), 5)
    program.outputs("cuCtxDestroy_v2", context)
    assert program.data() == 0


def create(program: Program, descriptor: bytes) -> int:
    return program.code("cuArrayCreate_v2", Out(), descriptor)


def test_wrong_values_are_refused_as_such(run: Run) -> None:
    program = run()
    assert create(program, flat(0, 10, FLOAT, 1)) == INVALID_VALUE
    assert create(program, flat(10, 10, 0x77, 1)) == INVALID_VALUE
    assert create(program, flat(131072, 65536, FLOAT, 1)) == OUT_OF_MEMORY
    assert program.data() == 0
