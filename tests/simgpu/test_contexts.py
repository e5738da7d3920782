"""Contexts take memory, own what is allocated in them, and die as the real driver's do."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import (
    CONTEXT,
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    MIB,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    SUCCESS,
    Out,
    Run,
)


def test_nothing_works_before_init(run: Run) -> None:
    program = run(started=False)
    assert program.code("cuDeviceGetCount", Out(4)) == NOT_INITIALIZED
    assert program.code("cuMemAlloc_v2", Out(), MIB) == NOT_INITIALIZED
    assert program.code("cuGraphicsUnregisterResource", 0) == NOT_INITIALIZED
    assert program.code("cuDriverGetVersion", Out(4)) == SUCCESS


def test_memory_needs_a_context(run: Run) -> None:
    program = run(started=False)
    program.outputs("cuInit", 0)
    assert program.code("cuMemAlloc_v2", Out(), MIB) == INVALID_CONTEXT
    assert program.code("cuMemGetInfo_v2", Out(), Out()) == INVALID_CONTEXT


def test_forked_child_is_not_initialised(run: Run) -> None:
    """And its death takes nothing from its parent."""
    program = run()
    program.alloc(4 * MIB)
    answers = program.ask("forked", [["cuInit", [0]], ["cuMemAlloc_v2", [{"out": 8}, MIB]], ["cuCtxSynchronize", []]])
    assert [code for code, _ in answers] == [NOT_INITIALIZED] * 3
    assert program.data() == 4 * MIB


def test_child_forked_before_init_may_use_the_card(run: Run) -> None:
    program = run(started=False)
    assert program.ask("forked", [["cuInit", [0]]])[0][0] == SUCCESS


def test_primary_context_lives_from_first_retain_to_last_release(run: Run) -> None:
    program = run()
    program.outputs("cuDevicePrimaryCtxRetain", Out(), 0)
    program.alloc(4 * MIB)
    program.outputs("cuDevicePrimaryCtxRelease_v2", 0)
    assert program.held()["used_bytes"] == CONTEXT + 4 * MIB
    program.outputs("cuDevicePrimaryCtxRelease", 0)
    assert program.held()["used_bytes"] == 0
    assert program.code("cuMemAlloc_v2", Out(), MIB) == CONTEXT_IS_DESTROYED
    assert program.code("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"])
def test_reset_frees_all_and_leaves_the_context_usable(run: Run, name: str) -> None:
    program = run()
    program.alloc(4 * MIB)
    program.alloc(100)
    program.outputs(name, 0)
    assert (program.data(), program.held()["context_bytes"]) == (0, CONTEXT)
    program.alloc(MIB)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("cuCtxCreate_v2", (0, 0)), ("cuCtxCreate_v3", (None, 0, 0, 0)), ("cuCtxCreate_v4", (None, 0, 0))],
)
def test_further_contexts_take_memory_and_free_what_is_theirs(
    run: Run, name: str, arguments: tuple[object, ...]
) -> None:
    program = run()
    program.alloc(4 * MIB)
    context = program.number(name, Out(), *arguments)
    program.alloc(6 * MIB)
    program.alloc(100)
    assert (program.data(), program.held()["context_bytes"]) == (12 * MIB, 2 * CONTEXT)
    program.outputs("cuCtxDestroy_v2", context)
    assert (program.data(), program.held()["context_bytes"]) == (4 * MIB, CONTEXT)
    program.alloc(MIB)  # the primary one is current again


def test_context_that_does_not_fit_is_refused(run: Run) -> None:
    program = run()
    free = int.from_bytes(program.outputs("cuMemGetInfo_v2", Out(), Out())[0], "little")
    program.alloc(free - 50 * MIB)
    assert program.code("cuCtxCreate_v2", Out(), 0, 0) == OUT_OF_MEMORY
    assert program.held()["contexts"] == 1


def test_context_too_many_for_the_thread_leaves_nothing_behind(run: Run) -> None:
    """Contexts are made on the calling thread's stack, which is finite."""
    program = run()
    made = 0
    while program.code("cuCtxCreate_v2", Out(), 0, 0) == SUCCESS:
        made += 1
    assert 0 < made < 100
    assert program.held()["contexts"] == 1 + made
    assert program.held()["context_bytes"] == (1 + made) * CONTEXT


def test_stack_of_contexts(run: Run) -> None:
    program = run()
    primary = program.number("cuCtxGetCurrent", Out())
    other = program.number("cuCtxCreate_v2", Out(), 0, 0)
    assert program.number("cuCtxPopCurrent_v2", Out()) == other
    assert program.number("cuCtxGetCurrent", Out()) == primary
    program.outputs("cuCtxPushCurrent_v2", other)
    assert program.number("cuCtxGetCurrent", Out()) == other
    assert program.code("cuCtxPushCurrent_v2", 0x1234) == INVALID_CONTEXT


@pytest.mark.parametrize(
    ("streams", "taken"), [(1, 0), (4, 2), (8, 4), (16, 8), (32, 16), (64, 34), (128, 70), (256, 140)]
)
def test_streams_take_memory_and_leave_their_room_to_the_next(run: Run, streams: int, taken: int) -> None:
    """So many MiB an H200 was seen to lack with so many streams."""
    program = run()
    made = [program.number("cuStreamCreate", Out(), 1) for _ in range(streams)]
    assert program.held()["context_bytes"] == CONTEXT + taken * MIB
    for stream in made:
        program.outputs("cuStreamDestroy_v2", stream)
    for _ in range(streams):
        program.number("cuStreamCreateWithPriority", Out(), 1, 0)
        program.number("cuEventCreate", Out(), 0)
    assert program.held()["context_bytes"] == CONTEXT + taken * MIB
    program.outputs("cuDevicePrimaryCtxReset_v2", 0)
    assert program.held()["context_bytes"] == CONTEXT


def test_stream_that_does_not_fit_is_refused(run: Run) -> None:
    program = run()
    program.alloc(int.from_bytes(program.outputs("cuMemGetInfo_v2", Out(), Out())[0], "little"))
    stream, _ = (program.number("cuStreamCreate", Out(), 1) for _ in range(2))  # the context has room for these
    assert program.code("cuStreamCreate", Out(), 1) == OUT_OF_MEMORY
    program.outputs("cuStreamDestroy_v2", stream)
    program.number("cuStreamCreate", Out(), 1)


def test_raised_limits_take_memory(run: Run) -> None:
    program = run()
    program.outputs("cuCtxSetLimit", 2, 72 * MIB)  # device heap
    assert program.held()["context_bytes"] == CONTEXT + 64 * MIB
    assert program.number("cuCtxGetLimit", Out(), 2) == 72 * MIB
    program.outputs("cuCtxSetLimit", 0, 2048)  # a KiB more of stack for each of 40 * 1024 threads
    assert program.held()["context_bytes"] == CONTEXT + 104 * MIB
    program.outputs("cuDevicePrimaryCtxReset_v2", 0)
    assert program.held()["context_bytes"] == CONTEXT
