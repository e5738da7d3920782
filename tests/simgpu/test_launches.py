"""Modules take memory, launches are counted and last as long as they are said to."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from tests.conftest import Card
from tests.simgpu.conftest import BLOCK, CONTEXT, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Out, Program, Run, simgpu

INVALID_IMAGE, INVALID_HANDLE, NOT_FOUND, NOT_READY = 200, 400, 500, 600

PTX = """//
// made by hand
//
.version 7.8
.target sm_75
.address_size 64
.visible .global .align 4 .b8 table[3000000];
.global .align 8 .u64 counter;
.visible .entry plain(.param .u64 a) { ret; }
.visible .entry busy_50ms() { .reg .b32 r; ret; }
.func helper() { ret; }
"""


def load(program: Program, text: str = PTX) -> int:
    return program.number("cuModuleLoadData", Out(), text)


def launch(program: Program, function: int, grid: int = 1) -> int:
    return program.code("cuLaunchKernel", function, grid, 1, 1, 32, 1, 1, 0, None, None, None)


def test_module_holds_its_code_and_variables(run: Run) -> None:
    program = run()
    module = load(program)
    assert program.held()["module_bytes"] == 4 * MIB  # 3,000,000 bytes and a little code
    pointer, size = program.outputs("cuModuleGetGlobal_v2", Out(), Out(), module, "table")
    assert int.from_bytes(size, "little") == 3_000_000
    program.outputs("cuMemsetD8_v2", int.from_bytes(pointer, "little"), 1, 3_000_000)
    assert program.number("cuModuleGetGlobal_v2", Out(), None, module, "counter") > 0
    assert program.code("cuModuleGetGlobal_v2", Out(), Out(), module, "plain") == NOT_FOUND
    program.outputs("cuModuleUnload", module)
    assert program.held()["module_bytes"] == 0


def test_small_modules_share_a_block(run: Run) -> None:
    program = run()
    text = ".version 7.8\n.target sm_75\n.visible .entry k() { ret; }\n"
    modules = [load(program, text) for _ in range(10)]
    assert program.held()["module_bytes"] == BLOCK
    assert program.data() == 0
    for module in modules:
        program.outputs("cuModuleUnload", module)
    assert program.held()["module_bytes"] == 0


def test_only_kernels_that_are_there_are_found(run: Run) -> None:
    program = run()
    module = load(program)
    assert program.number("cuModuleGetFunction", Out(), module, "plain") > 0
    assert program.code("cuModuleGetFunction", Out(), module, "helper") == NOT_FOUND
    assert program.number("cuModuleGetFunctionCount", Out(4), module) == 2
    assert program.code("cuModuleLoadData", Out(), "text that is no program") == INVALID_IMAGE


def test_context_takes_its_modules_along(run: Run) -> None:
    program = run()
    context = program.number("cuCtxCreate_v2", Out(), 0, 0)
    load(program)
    program.outputs("cuCtxDestroy_v2", context)
    assert program.held()["module_bytes"] == 0


def test_library_is_loaded_into_each_context_that_uses_it(run: Run) -> None:
    program = run()
    library = program.number("cuLibraryLoadData", Out(), PTX, None, None, 0, None, None, 0)
    assert program.held()["module_bytes"] == 0
    kernel = program.number("cuLibraryGetKernel", Out(), library, "plain")
    assert launch(program, kernel) == SUCCESS
    assert program.held()["module_bytes"] == 4 * MIB
    program.number("cuCtxCreate_v2", Out(), 0, 0)
    function = program.number("cuKernelGetFunction", Out(), kernel)
    assert launch(program, function) == SUCCESS
    assert program.held()["module_bytes"] == 8 * MIB
    program.outputs("cuLibraryUnload", library)
    assert program.held()["module_bytes"] == 0


def test_linked_images_are_loaded_together(run: Run) -> None:
    program = run()
    state = program.number("cuLinkCreate_v2", 0, None, None, Out())
    for name in ("one", "two"):
        text = f".version 7.8\n.target sm_75\n.visible .entry {name}() {{ ret; }}\n"
        program.outputs("cuLinkAddData_v2", state, 1, text, len(text), name, 0, None, None)
    image, _ = program.outputs("cuLinkComplete", state, Out(), Out())
    module = program.number("cuModuleLoadDataEx", Out(), int.from_bytes(image, "little"), 0, None, None)
    program.outputs("cuLinkDestroy", state)
    assert program.number("cuModuleGetFunction", Out(), module, "one") > 0
    assert program.number("cuModuleGetFunction", Out(), module, "two") > 0


def test_launches_are_counted(run: Run) -> None:
    program = run()
    function = program.number("cuModuleGetFunction", Out(), load(program), "plain")
    for _ in range(7):
        assert launch(program, function) == SUCCESS
    assert launch(program, function, grid=0) == INVALID_VALUE
    assert launch(program, program.alloc(MIB)) == INVALID_HANDLE
    assert program.held()["launches"] == 7


def test_kernel_lasts_as_its_name_says(run: Run, card: Card) -> None:
    """And the next thing in its stream waits; the card is busy meanwhile."""
    program = run()
    function = program.number("cuModuleGetFunction", Out(), load(program), "busy_50ms")
    event = program.number("cuEventCreate", Out(), 0)
    begin = time.monotonic()
    for _ in range(4):
        assert launch(program, function) == SUCCESS
    program.outputs("cuEventRecord", event, None)
    assert program.code("cuStreamQuery", None) == NOT_READY
    assert program.code("cuEventQuery", event) == NOT_READY
    program.outputs("cuCtxSynchronize")
    assert time.monotonic() - begin >= 0.2
    assert program.code("cuStreamQuery", None) == SUCCESS
    assert program.code("cuEventQuery", event) == SUCCESS
    assert card.truth()[0]["busy_percent"] > 5


def test_card_may_give_every_kernel_a_duration(run: Run, card: Card) -> None:
    assert simgpu("create", "--state", card.state, "--kernel-us", 100000).returncode == 0
    program = run()
    function = program.number("cuModuleGetFunction", Out(), load(program), "plain")
    launch(program, function)
    assert program.code("cuStreamQuery", None) == NOT_READY


@pytest.mark.parametrize("name", ["cuFuncGetAttribute", "cuKernelGetAttribute"])
def test_functions_tell_what_they_are(run: Run, name: str) -> None:
    program = run()
    library = program.number("cuLibraryLoadData", Out(), PTX, None, None, 0, None, None, 0)
    kernel = program.number("cuLibraryGetKernel", Out(), library, "plain")
    function = kernel if name == "cuKernelGetAttribute" else program.number("cuKernelGetFunction", Out(), kernel)
    assert program.number(name, Out(4), 0, function, 0) == 1024
    assert program.number(name, Out(4), 6, function, 0) == 75


LOCAL = """.version 7.8
.target sm_75
.address_size 64
.visible .entry none() { ret; }
.visible .entry some(.param .u64 a)
{
    .local .align 16 .b8 __local_depot1[1536];
    .reg .b64 %SP;
    { .local .align 4 .b32 scratch[128]; st.local.u32 [%SP+4], 0; }
    // .local .align 4 .b8 remark[4096];
    ret;
}
.func helper() { .local .align 4 .b8 depot[8000]; ret; }
.visible .entry a_lot() { .local .align 8 .b8 depot[16384]; ret; }
.visible .entry more() { .local .align 8 .b8 depot[65536]; ret; }
"""


def functions(program: Program) -> dict[str, int]:
    module = load(program, LOCAL)
    names = ("none", "some", "a_lot", "more")
    return {name: program.number("cuModuleGetFunction", Out(), module, name) for name in names}


def test_functions_tell_their_local_memory(run: Run) -> None:
    program = run()
    library = program.number("cuLibraryLoadData", Out(), LOCAL, None, None, 0, None, None, 0)
    for name, size in (("none", 0), ("some", 2048), ("a_lot", 16384), ("more", 65536)):
        kernel = program.number("cuLibraryGetKernel", Out(), library, name)
        assert program.number("cuKernelGetAttribute", Out(4), 3, kernel, 0) == size
        function = program.number("cuKernelGetFunction", Out(), kernel)
        assert program.number("cuFuncGetAttribute", Out(4), 3, function) == size


def test_launch_makes_room_for_local_memory_and_keeps_it(run: Run, make_card: Callable[..., Card]) -> None:
    """As measured on an H200: what is above 1 KiB, for 132 multiprocessors of 2048 threads."""
    program = run(on=make_card("H200"))
    empty = program.held()["context_bytes"]
    function = functions(program)
    for name, room in (("none", 0), ("a_lot", 3960), ("some", 3960), ("more", 16632), ("a_lot", 16632)):
        assert launch(program, function[name]) == SUCCESS
        assert program.held()["context_bytes"] == empty + room * MIB, name
    program.outputs("cuCtxSetLimit", 0, 8192)  # takes the room back that launches made
    assert program.held()["context_bytes"] == empty + 1848 * MIB
    assert launch(program, function["more"]) == SUCCESS
    assert program.held()["context_bytes"] == empty + 16632 * MIB
    program.outputs("cuDevicePrimaryCtxReset_v2", 0)
    assert program.held()["context_bytes"] == empty


def test_stack_limit_makes_room_for_local_memory(run: Run) -> None:
    program = run()
    function = functions(program)
    program.outputs("cuCtxSetLimit", 0, 16384)
    assert program.held()["context_bytes"] == CONTEXT + 600 * MIB
    launch(program, function["a_lot"])
    assert program.held()["context_bytes"] == CONTEXT + 600 * MIB


def test_launch_without_room_for_local_memory_is_refused(run: Run) -> None:
    program = run()
    function = functions(program)
    free = int.from_bytes(program.outputs("cuMemGetInfo_v2", Out(), Out())[0], "little")
    program.alloc(free - 100 * MIB)
    assert launch(program, function["a_lot"]) == OUT_OF_MEMORY
    assert launch(program, function["some"]) == SUCCESS
    assert program.held()["context_bytes"] == CONTEXT + 40 * MIB
    assert program.held()["launches"] == 1


@pytest.mark.parametrize("depth", [0, 1])
def test_graph_makes_room_for_local_memory_when_it_runs(run: Run, depth: int) -> None:
    program = run()
    function = functions(program)
    stream = program.number("cuStreamCreate", Out(), 1)
    program.outputs("cuStreamBeginCapture_v2", stream, 2)
    for name in ("none", "a_lot"):
        code = program.code("cuLaunchKernel", function[name], 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        assert code == SUCCESS
    graph = program.number("cuStreamEndCapture", stream, Out())
    for _ in range(depth):
        outer = program.number("cuGraphCreate", Out(), 0)
        program.number("cuGraphAddChildGraphNode", Out(), outer, None, 0, graph)
        graph = outer
    instance = program.number("cuGraphInstantiateWithFlags", Out(), graph, 0)
    assert program.held()["context_bytes"] == CONTEXT
    free, _ = struct.unpack("<QQ", b"".join(program.outputs("cuMemGetInfo_v2", Out(), Out())))
    pointer = program.alloc(free - 100 * MIB)
    assert program.code("cuGraphLaunch", instance, stream) == OUT_OF_MEMORY
    program.free(pointer)
    program.outputs("cuGraphLaunch", instance, stream)
    assert program.held()["context_bytes"] == CONTEXT + 600 * MIB
