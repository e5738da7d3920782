"""What may be called while a stream records a graph, and what spoils the recording."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.simgpu.conftest import INVALID_VALUE, MIB, SUCCESS, Out, Program, Run

UNSUPPORTED, INVALIDATED = 900, 901
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, SPOILT = 0, 1, 2

FLAT = struct.pack("<QQiI", 16, 16, 0x20, 1)
DEEP = struct.pack("<QQQiII4x", 16, 16, 0, 0x20, 1, 0)
DEFERRED = struct.pack("<QQQiII4x", 16, 16, 0, 0x20, 1, 0x80)

FORBIDDEN: list[tuple[Any, ...]] = [
    ("cuMemAlloc_v2", Out(), 1000),
    ("cuMemAllocPitch_v2", Out(), Out(), 1000, 10, 4),
    ("cuMemAllocManaged", Out(), MIB, 1),
    ("cuMemFree_v2", "pointer"),
    ("cuMemPoolGetAttribute", "pool", 5, Out()),
    ("cuMemPoolSetAttribute", "pool", 4, Out()),
    ("cuMemPoolTrimTo", "pool", 0),
    ("cuArrayCreate_v2", Out(), FLAT),
    ("cuArray3DCreate_v2", Out(), DEEP),
    ("cuArray3DCreate_v2", Out(), DEFERRED),
    ("cuMipmappedArrayCreate", Out(), DEFERRED, 3),
]

ALLOWED: list[tuple[Any, ...]] = [
    ("cuStreamGetCtx", "stream", Out()),
    ("cuDeviceGetMemPool", Out(), 0),
    ("cuMemGetInfo_v2", Out(), Out()),
    ("cuDeviceGetGraphMemAttribute", 0, 0, Out()),
    ("cuDeviceGraphMemTrim", 0),
    ("cuPointerGetAttribute", Out(), 1, "pointer"),
    ("cuMemCreate", Out(), 2 * MIB, struct.pack("<iiii16x", 1, 0, 1, 0), 0),
    ("cuModuleLoadData", Out(), ".version 7.8\n.target sm_75\n.visible .entry k() { ret; }\n"),
    ("cuStreamCreate", Out(), 1),
    ("cuEventCreate", Out(), 0),
    ("cuCtxGetLimit", Out(), 0),
    ("cuMemAllocFromPoolAsync", Out(), MIB, "pool", "stream"),
]


class Recording:
    """A program with a stream that records."""

    def __init__(self, program: Program, mode: int) -> None:
        self.program = program
        self.context = program.number("cuCtxGetCurrent", Out())
        self.named = {
            "pointer": program.alloc(1000),
            "pool": program.number("cuDeviceGetMemPool", Out(), 0),
            "stream": program.number("cuStreamCreate", Out(), 1),
        }
        self.stream = self.named["stream"]
        program.outputs("cuStreamBeginCapture_v2", self.stream, mode)

    def _arguments(self, arguments: tuple[Any, ...]) -> list[Any]:
        return [self.named.get(a, a) if isinstance(a, str) else a for a in arguments]

    def code(self, name: str, *arguments: Any) -> int:
        return self.program.code(name, *self._arguments(arguments))

    def elsewhere(self, name: str, *arguments: Any, mode: int = GLOBAL) -> int:
        return self.program.elsewhere(self.context, name, *self._arguments(arguments), mode=mode)

    def status(self) -> int:
        return self.program.number("cuStreamIsCapturing", self.stream, Out(4))

    def end(self) -> tuple[int, int]:
        """The code, and the graph."""
        code, filled = self.program.ask("call", "cuStreamEndCapture", [self.stream, {"out": 8}])
        return code, int.from_bytes(bytes.fromhex(filled[0]), "little")


@pytest.mark.parametrize("call", FORBIDDEN, ids=lambda c: c[0])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_forbidden_call_spoils_the_capture(run: Run, mode: int, call: tuple[Any, ...]) -> None:
    recording = Recording(run(), mode)
    assert recording.code("cuMemAllocAsync", Out(), MIB, "stream") == SUCCESS
    assert recording.status() == ACTIVE
    held = recording.program.held()
    assert recording.code(*call) == UNSUPPORTED
    assert recording.program.held() == held
    assert recording.status() == SPOILT
    assert recording.code("cuMemAllocAsync", Out(), MIB, "stream") == INVALIDATED
    assert recording.code("cuEventRecord", recording.program.number("cuEventCreate", Out(), 0), "stream") == INVALIDATED
    assert recording.end() == (INVALIDATED, 0)
    assert recording.status() == NONE
    assert recording.code(*call) == SUCCESS
    recording.program.outputs("cuStreamBeginCapture_v2", recording.stream, mode)
    code, graph = recording.end()
    assert (code, graph != 0) == (SUCCESS, True)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_what_never_synchronises_is_allowed(run: Run, mode: int) -> None:
    recording = Recording(run(), mode)
    for call in ALLOWED:
        assert recording.code(*call) == SUCCESS, call[0]
    assert recording.status() == ACTIVE
    assert recording.end()[0] == SUCCESS


def test_relaxed_capture_forbids_nothing(run: Run) -> None:
    recording = Recording(run(), RELAXED)
    for call in FORBIDDEN:
        assert recording.code(*call) == SUCCESS, call[0]
        recording.named["pointer"] = recording.program.alloc(1000)
    assert recording.end()[0] == SUCCESS


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_relaxed_thread_may_call_anything(run: Run, mode: int) -> None:
    recording = Recording(run(), mode)
    recording.program.outputs("cuThreadExchangeStreamCaptureMode", struct.pack("<i", RELAXED))
    assert recording.code("cuMemAlloc_v2", Out(), 1000) == SUCCESS
    assert recording.end()[0] == SUCCESS


def test_global_capture_forbids_in_all_threads(run: Run) -> None:
    recording = Recording(run(), GLOBAL)
    assert recording.elsewhere("cuMemAlloc_v2", Out(), 1000, mode=RELAXED) == SUCCESS
    assert recording.elsewhere("cuMemAlloc_v2", Out(), 1000, mode=THREAD_LOCAL) == SUCCESS
    assert recording.status() == ACTIVE
    assert recording.elsewhere("cuMemAlloc_v2", Out(), 1000) == UNSUPPORTED
    assert recording.end() == (INVALIDATED, 0)


def test_thread_local_capture_forbids_in_its_thread(run: Run) -> None:
    recording = Recording(run(), THREAD_LOCAL)
    assert recording.elsewhere("cuMemAlloc_v2", Out(), 1000) == SUCCESS
    assert recording.end()[0] == SUCCESS


def test_forbidden_call_spoils_each_capture_that_forbids_it(run: Run) -> None:
    recording = Recording(run(), GLOBAL)
    program = recording.program
    others = [program.number("cuStreamCreate", Out(), 1) for _ in range(2)]
    for stream, mode in zip(others, (THREAD_LOCAL, RELAXED), strict=True):
        program.outputs("cuStreamBeginCapture_v2", stream, mode)
    assert recording.code("cuMemAlloc_v2", Out(), 1000) == UNSUPPORTED
    assert recording.status() == SPOILT
    assert [program.number("cuStreamIsCapturing", stream, Out(4)) for stream in others] == [SPOILT, ACTIVE]


def test_spoilt_capture_leaves_the_programs_own_graph_alone(run: Run) -> None:
    recording = Recording(run(), GLOBAL)
    assert recording.end()[0] == SUCCESS
    graph = recording.program.number("cuGraphCreate", Out(), 0)
    recording.program.outputs("cuStreamBeginCaptureToGraph", recording.stream, graph, None, None, 0, GLOBAL)
    assert recording.code("cuMemAllocAsync", Out(), MIB, "stream") == SUCCESS
    assert recording.code("cuMemFree_v2", "pointer") == UNSUPPORTED
    assert recording.end() == (INVALIDATED, 0)
    assert recording.program.number("cuGraphGetNodes", graph, None, Out()) == 1


def test_stream_that_is_destroyed_ends_its_capture(run: Run) -> None:
    recording = Recording(run(), GLOBAL)
    recording.program.outputs("cuStreamDestroy_v2", recording.stream)
    recording.program.alloc(MIB)


def test_stream_that_records_cannot_be_waited_for(run: Run) -> None:
    recording = Recording(run(), GLOBAL)
    assert recording.code("cuStreamSynchronize", "stream") == UNSUPPORTED
    assert recording.code("cuStreamEndCapture", "stream", None) == INVALID_VALUE
