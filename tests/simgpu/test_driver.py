"""What else a program meets: peers, green contexts, external memory, recording streams, missing functions."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Card
from tests.simgpu.conftest import CONTEXT, INVALID_VALUE, MIB, SUCCESS, Out, Run, simgpu

PEER_ENABLED, PEER_NOT_ENABLED, PEER_UNSUPPORTED = 704, 705, 217


def test_peer_access_is_a_pair_and_costs_nothing(run: Run, make_card: Callable[..., Card]) -> None:
    program = run(on=make_card("T4", "T4"))
    mine = program.number("cuCtxGetCurrent", Out())
    theirs = program.number("cuDevicePrimaryCtxRetain", Out(), 1)
    assert program.number("cuDeviceCanAccessPeer", Out(4), 0, 1) == 1
    assert program.code("cuCtxDisablePeerAccess", theirs) == PEER_NOT_ENABLED
    program.outputs("cuCtxEnablePeerAccess", theirs, 0)
    assert program.code("cuCtxEnablePeerAccess", theirs, 0) == PEER_ENABLED
    program.outputs("cuCtxSetCurrent", theirs)
    there = program.alloc(MIB)
    program.outputs("cuMemsetD8_v2", there, 68, MIB)
    program.outputs("cuCtxSetCurrent", mine)
    here = program.alloc(MIB)
    program.outputs("cuMemcpyPeer", here, mine, there, theirs, MIB)
    assert program.outputs("cuMemcpyDtoH_v2", Out(4), here, 4)[0] == b"DDDD"
    assert [program.held(card)["used_bytes"] for card in (0, 1)] == [CONTEXT + 2 * MIB] * 2


def test_green_context_lives_on_the_primary_one(run: Run) -> None:
    program = run(started=False)
    program.outputs("cuInit", 0)
    [resource] = program.outputs("cuDeviceGetDevResource", 0, Out(152), 1)
    description = program.number("cuDevResourceGenerateDesc", Out(), resource, 1)
    green = program.number("cuGreenCtxCreate", Out(), description, 0, 1)
    assert program.held()["used_bytes"] == CONTEXT
    context = program.number("cuCtxFromGreenCtx", Out(), green)
    program.outputs("cuCtxSetCurrent", context)
    program.alloc(4 * MIB)
    stream = program.number("cuGreenCtxStreamCreate", Out(), green, 1, 0)
    assert program.number("cuStreamGetGreenCtx", stream, Out()) == green
    program.outputs("cuGreenCtxDestroy", green)
    assert program.held()["used_bytes"] == 0


def test_foreign_memory_is_mapped_but_not_charged(run: Run) -> None:
    program = run()
    descriptor = program.ask("open", "/dev/zero")
    description = struct.pack("<i4xi12xQI64x4x", 1, descriptor, 64 * MIB, 0)
    memory = program.number("cuImportExternalMemory", Out(), description)
    program.number("cuExternalMemoryGetMappedBuffer", Out(), memory, struct.pack("<QQI64x4x", 0, 64 * MIB, 0))
    assert program.data() == 0
    program.outputs("cuDestroyExternalMemory", memory)


def test_stream_writes_values(run: Run) -> None:
    program = run()
    pointer = program.alloc(64)
    program.outputs("cuStreamWriteValue32_v2", None, pointer + 8, 0x41424344, 0)
    assert program.outputs("cuMemcpyDtoH_v2", Out(4), pointer + 8, 4)[0] == b"DCBA"
    assert program.code("cuStreamWriteValue32_v2", None, pointer + 9, 1, 0) == INVALID_VALUE


def test_copies_of_two_dimensions(run: Run) -> None:
    """Rows with a pitch go into an array and back."""
    program = run()
    host = program.number("cuMemAllocHost_v2", Out(), 4096)
    program.ask("place", host, bytes(range(256)).hex() * 4)
    array = program.number("cuArrayCreate_v2", Out(), struct.pack("<QQiI", 16, 8, 1, 1))
    there = struct.pack("<QQi4xQQQQ QQi4xQQQQ QQ", 0, 0, 1, host, 0, 0, 32, 0, 0, 3, 0, 0, array, 0, 16, 8)
    program.outputs("cuMemcpy2D_v2", there)
    back = struct.pack("<QQi4xQQQQ QQi4xQQQQ QQ", 2, 1, 3, 0, 0, array, 0, 0, 0, 1, host + 2048, 0, 0, 4, 4, 2)
    program.outputs("cuMemcpy2D_v2", back)
    assert program.outputs("cuMemcpy", Out(8), host + 2048, 8)[0] == bytes([34, 35, 36, 37, 66, 67, 68, 69])


def test_threads_take_and_free_at_once(card: Card) -> None:
    """Nothing is lost or counted twice, whatever the threads of one process do."""
    text = """
import ctypes, random, threading
d = ctypes.CDLL("libcuda.so.1"); c = ctypes.c_void_p()
assert d.cuInit(0) == 0 and d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == 0
def work(seed):
    dice, live = random.Random(seed), []
    assert d.cuCtxSetCurrent(c) == 0
    for _ in range(1500):
        if live and dice.random() < 0.5:
            assert d.cuMemFree_v2(live.pop(dice.randrange(len(live)))) == 0
        else:
            p = ctypes.c_uint64()
            assert d.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(dice.choice([100, 70000, 3 << 20]))) == 0
            live.append(p)
    for p in live:
        assert d.cuMemFree_v2(p) == 0
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
print("done", flush=True); input()
"""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", text], env=card.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "done\n"
        [process] = card.truth()[0]["processes"]
        assert (process["used_bytes"], process["allocations"]) == (CONTEXT, 0)
        program.kill()


@pytest.mark.parametrize("started", [True, False])
def test_missing_function_is_missing_before_and_after_init(run: Run, started: bool) -> None:
    program = run(started=started)
    assert simgpu("fault", "--state", program.card.state, "cuMemCreate", "1-", "missing").returncode == 0
    assert program.code("cuGetProcAddress", "cuMemCreate", Out(), 12000, 0) == 500
    assert program.code("cuGetProcAddress", "cuMemMap", Out(), 12000, 0) == SUCCESS


def test_driver_that_lacks_functions(card: Card, tmp_path: Path) -> None:
    """Neither dlsym nor the look-up finds them; all others are as they were."""
    assert simgpu("library", "--without", "cuMemCreate,cuMemAllocAsync", tmp_path).returncode == 0
    text = """
import ctypes
d = ctypes.CDLL("libcuda.so.1"); f = ctypes.c_void_p(); s = ctypes.c_int()
assert not hasattr(d, "cuMemCreate") and not hasattr(d, "cuMemAllocAsync") and hasattr(d, "cuMemMap")
def status(name):
    assert d.cuGetProcAddress_v2(name, ctypes.byref(f), 13000, ctypes.c_uint64(0), ctypes.byref(s)) == 0
    return s.value
names = [b"cuMemCreate", b"cuMemAllocAsync", b"cuMemMap", b"cuMemAlloc", b"cuMemRelease", b"cuMemcpy", b"cuInit"]
assert [status(n) for n in names] == [1, 1, 0, 0, 0, 0, 0]
assert d.cuInit(0) == 0
"""
    env = card.env | {"LD_LIBRARY_PATH": os.fspath(tmp_path)}
    subprocess.run([sys.executable, "-S", "-c", text], env=env, check=True)
    assert simgpu("library", "--without", "cuNoSuchThing", tmp_path).returncode == 1
