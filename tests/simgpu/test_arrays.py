"""Arrays take what their tiled layout needs; mipmapped ones all their levels."""

from __future__ import annotations

import struct

import pytest

from tests.simgpu.conftest import BLOCK, INVALID_VALUE, MIB, OUT_OF_MEMORY, Out, Program, Run

UINT8, FLOAT, BC1 = 0x01, 0x20, 0x91
INVALID_HANDLE = 400


def flat(width: int, height: int, kind: int, channels: int) -> bytes:
    return struct.pack("<QQiI", width, height, kind, channels)


def deep(width: int, height: int, depth: int, kind: int, flags: int = 0, *, channels: int = 1) -> bytes:
    return struct.pack("<QQQiII4x", width, height, depth, kind, channels, flags)


@pytest.mark.parametrize(
    ("descriptor", "charged"),
    [
        (flat(1024, 1024, FLOAT, 4), 16 * MIB),
        (flat(1000, 1001, FLOAT, 1), 4 * MIB),  # rows of 4032 bytes, 1024 of them
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


LAYERED, SURFACE, CUBEMAP, DEFERRED = 1, 2, 4, 0x80

# What an H200 answered: width, height, depth, channels, flags of an array of floats, and its bytes in whole 64 KiB.
MEASURED = [
    ((64, 0, 0, 1), 65536),
    ((1000, 0, 0, 4), 131072),
    ((4096, 0, 0, 1), 131072),
    ((16384, 0, 0, 4), 2097152),
    ((65536, 0, 0, 4), 8388608),
    ((131072, 0, 0, 4), 16777216),
    ((64, 64, 0, 4), 65536),
    ((100, 100, 0, 4), 262144),
    ((150, 150, 0, 4), 655360),
    ((200, 200, 0, 4), 851968),
    ((256, 250, 0, 4), 1048576),
    ((258, 258, 0, 4), 1638400),
    ((300, 300, 0, 4), 1900544),
    ((1000, 1000, 0, 1), 4128768),
    ((1000, 1000, 0, 4), 16384000),
    ((2048, 1025, 0, 4), 37748736),
    ((16384, 65, 0, 1), 8388608),
    ((65, 3000, 0, 4), 3342336),
    ((32768, 2, 0, 4), 4194304),
    ((5, 65536, 0, 1), 4194304),
    ((100, 100, 100, 1), 5242880),
    ((100, 100, 100, 4), 18677760),
    ((10, 10, 1000, 4), 3145728),
    ((1024, 1024, 2, 1), 8388608),
    ((1024, 1024, 3, 1), 16777216),
    ((1024, 1024, 5, 1), 33554432),
    ((1024, 1024, 17, 1), 134217728),
    ((1024, 1024, 33, 1), 201326592),
    ((256, 16, 33, 4), 3145728),
    ((256, 40, 40, 4), 7864320),
    ((256, 9, 9, 4), 1048576),
    ((64, 64, 64, 4), 4194304),
    ((300, 300, 30, 1), 11862016),
    ((512, 512, 6, 4, SURFACE), 33554432),
    ((512, 512, 4, 4, LAYERED), 16777216),
    ((300, 300, 7, 4, LAYERED), 12910592),
    ((100, 100, 3, 4, LAYERED), 655360),
    ((512, 512, 6, 1, CUBEMAP), 6291456),
    ((1000, 0, 9, 4, LAYERED), 1179648),
    ((640, 480, 0, 4, SURFACE), 5242880),
    ((1920, 1080, 0, 1), 8847360),
]

# The same of mipmapped arrays of four floats: width, height and levels.
MEASURED_MIPMAPS = [
    ((1024, 1024, 11), 22413312),
    ((1000, 700, 5), 16777216),
    ((4096, 4096, 13), 357957632),
    ((64, 64, 7), 131072),
    ((256, 256, 9), 1441792),
    ((777, 555, 10), 11468800),
]


def test_layout_is_that_of_a_real_card(run: Run) -> None:
    program = run()
    for (width, height, depth, channels, *flags), size in MEASURED:
        descriptor = deep(width, height, depth, FLOAT, sum(flags) | DEFERRED, channels=channels)
        array = program.number("cuArray3DCreate_v2", Out(), descriptor)
        answer = program.outputs("cuArrayGetMemoryRequirements", Out(32), array, 0)[0]
        assert struct.unpack_from("<QQ", answer) == (size, 65536), (width, height, depth, channels, flags)
    for (width, height, levels), size in MEASURED_MIPMAPS:
        descriptor = deep(width, height, 0, FLOAT, DEFERRED, channels=4)
        mipmap = program.number("cuMipmappedArrayCreate", Out(), descriptor, levels)
        answer = program.outputs("cuMipmappedArrayGetMemoryRequirements", Out(32), mipmap, 0)[0]
        assert struct.unpack_from("<QQ", answer) == (size, 65536), (width, height, levels)
    assert program.data() == 0


@pytest.mark.parametrize(
    ("width", "height", "charged"),
    [
        (1000, 0, 6 * MIB),  # 128,000 bytes each, sixteen a block
        (100, 100, 10 * MIB),
        (150, 150, 32 * MIB),
        (200, 200, 48 * MIB),
        (256, 256, 48 * MIB),  # exactly 1 MiB
        (288, 256, 96 * MIB),  # 1.125 MiB
    ],
)
def test_arrays_up_to_a_mebibyte_share_blocks(run: Run, width: int, height: int, charged: int) -> None:
    program = run()
    arrays = [program.number("cuArrayCreate_v2", Out(), flat(width, height, FLOAT, 4)) for _ in range(48)]
    assert program.data() == charged
    for array in arrays:
        program.outputs("cuArrayDestroy", array)
    assert program.data() == 0


def test_blocks_are_shared_by_arrays_of_one_texel_size(run: Run) -> None:
    """Whatever their shape; linear requests and other texels have other blocks."""
    program = run()
    for height, depth, flags in ((0, 0, 0), (8, 0, 0), (8, 4, 0), (8, 3, LAYERED), (8, 0, SURFACE), (8, 6, CUBEMAP)):
        program.number("cuArray3DCreate_v2", Out(), deep(8, height, depth, FLOAT, flags))
    assert program.data() == BLOCK
    program.alloc(1000)
    assert program.data() == 2 * BLOCK
    program.number("cuArray3DCreate_v2", Out(), deep(8, 8, 0, FLOAT, channels=4))
    assert program.data() == 3 * BLOCK
    program.number("cuArrayCreate_v2", Out(), flat(8, 8, UINT8, 1))
    assert program.data() == 4 * BLOCK


def test_volume_keeps_its_data(run: Run) -> None:
    program = run()
    volume = program.number("cuArray3DCreate_v2", Out(), deep(32, 20, 5, UINT8))
    program.outputs("cuMemcpyHtoA_v2", volume, 0, b"first slice", 11)
    assert program.outputs("cuMemcpyAtoH_v2", Out(11), volume, 0, 11)[0] == b"first slice"


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
    assert create(program, flat(10, 10, FLOAT, 3)) == INVALID_VALUE
    assert create(program, flat(131072, 65536, FLOAT, 1)) == OUT_OF_MEMORY
    assert program.data() == 0
