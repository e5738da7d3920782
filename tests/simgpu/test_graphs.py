"""Memory of graphs: taken when the graph runs, kept in the device's reserve until that is trimmed."""

from __future__ import annotations

import struct

import pytest

from tests.simgpu.conftest import CONTEXT, INVALID_VALUE, MIB, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Out, Program, Run

AUTO_FREE = 1
POINTER_OFFSET = 88 + 24


def allocation(size: int) -> bytes:
    """Parameters of an allocation node, without room for the address."""
    return struct.pack("<iiiiQQ56xQQQ", 1, 0, 1, 0, 0, 0, 0, 0, size)


class Graph:
    """A graph under construction, its nodes one behind the other."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.handle = program.number("cuGraphCreate", Out(), 0)
        self.last: int | None = None

    def _before(self) -> tuple[bytes | None, int]:
        return (None, 0) if self.last is None else (struct.pack("<Q", self.last), 1)

    def allocate(self, size: int) -> int:
        stream = self.program
        buffer = stream.number("cuMemAllocHost_v2", Out(), 256)
        parameters = allocation(size)
        stream.ask("place", buffer, parameters.hex())
        self.last = stream.number("cuGraphAddMemAllocNode", Out(), self.handle, *self._before(), buffer)
        return int(stream.ask("peek", buffer + len(parameters)))

    def free(self, pointer: int) -> None:
        self.last = self.program.number("cuGraphAddMemFreeNode", Out(), self.handle, *self._before(), pointer)

    def instantiate(self, flags: int = 0) -> int:
        return self.program.number("cuGraphInstantiateWithFlags", Out(), self.handle, flags)


def attribute(program: Program, which: int) -> int:
    return program.number("cuDeviceGetGraphMemAttribute", 0, which, Out())


def test_memory_comes_with_the_run_and_goes_with_the_trim(run: Run) -> None:
    program = run()
    graph = Graph(program)
    pointer = graph.allocate(9 * MIB)
    graph.free(pointer)
    instance = graph.instantiate()
    assert program.data() == 0
    program.outputs("cuGraphLaunch", instance, None)
    program.outputs("cuGraphLaunch", instance, None)
    program.outputs("cuCtxSynchronize")
    assert program.data() == 10 * MIB
    assert [attribute(program, a) for a in range(4)] == [0, 9 * MIB, 10 * MIB, 10 * MIB]
    program.outputs("cuDeviceGraphMemTrim", 0)
    assert program.data() == 0
    program.outputs("cuDeviceSetGraphMemAttribute", 0, 3, struct.pack("<Q", 0))
    assert attribute(program, 3) == 0


def test_memory_that_the_graph_leaves_is_the_programs_to_free(run: Run) -> None:
    program = run()
    graph = Graph(program)
    pointer = graph.allocate(4 * MIB)
    instance = graph.instantiate()
    assert program.code("cuMemFree_v2", pointer) == INVALID_VALUE
    program.outputs("cuGraphLaunch", instance, None)
    assert program.code("cuGraphLaunch", instance, None) == INVALID_VALUE
    program.outputs("cuMemsetD8_v2", pointer, 1, 4 * MIB)
    program.outputs("cuGraphExecDestroy", instance)
    program.outputs("cuGraphDestroy", graph.handle)
    program.outputs("cuDeviceGraphMemTrim", 0)
    assert program.data() == 4 * MIB
    program.outputs("cuMemFreeAsync", pointer, None)
    program.outputs("cuDeviceGraphMemTrim", 0)
    assert program.data() == 0


def test_instance_may_free_what_it_left_at_its_next_run(run: Run) -> None:
    program = run()
    graph = Graph(program)
    graph.allocate(4 * MIB)
    instance = graph.instantiate(AUTO_FREE)
    for _ in range(3):
        program.outputs("cuGraphLaunch", instance, None)
    assert program.data() == 4 * MIB


def test_memory_freed_in_a_run_serves_its_next_node(run: Run) -> None:
    program = run()
    graph = Graph(program)
    for _ in range(3):
        graph.free(graph.allocate(6 * MIB))
    program.outputs("cuGraphLaunch", graph.instantiate(), None)
    assert program.data() == 6 * MIB


def test_run_that_does_not_fit_leaves_nothing_taken(run: Run) -> None:
    program = run()
    graph = Graph(program)
    graph.allocate(8000 * MIB)
    graph.allocate(8000 * MIB)
    instance = graph.instantiate()
    assert program.code("cuGraphLaunch", instance, None) == OUT_OF_MEMORY
    assert attribute(program, 0) == 0
    program.outputs("cuDeviceGraphMemTrim", 0)
    assert program.data() == 0


@pytest.mark.parametrize("freed", [True, False])
def test_captured_requests_become_nodes(run: Run, freed: bool) -> None:
    program = run()
    stream = program.number("cuStreamCreate", Out(), 0)
    program.outputs("cuStreamBeginCapture_v2", stream, 0)
    pointer = program.number("cuMemAllocAsync", Out(), 6 * MIB, stream)
    if freed:
        program.outputs("cuMemFreeAsync", pointer, stream)
    graph = program.number("cuStreamEndCapture", stream, Out())
    assert program.data() == 0
    assert program.number("cuGraphGetNodes", graph, None, Out()) == 1 + freed
    instance = program.number("cuGraphInstantiateWithFlags", Out(), graph, 0)
    program.outputs("cuGraphLaunch", instance, stream)
    assert program.data() == 6 * MIB
    assert program.code("cuMemFreeAsync", pointer, stream) == (INVALID_VALUE if freed else SUCCESS)


def test_graph_with_memory_has_one_copy_of_its_addresses(run: Run) -> None:
    program = run()
    graph = Graph(program)
    graph.allocate(4 * MIB)
    graph.instantiate()
    assert program.code("cuGraphClone", Out(), graph.handle) == NOT_SUPPORTED
    assert program.code("cuGraphInstantiateWithFlags", Out(), graph.handle, 0) == NOT_SUPPORTED
    assert (
        program.code("cuGraphAddChildGraphNode", Out(), Graph(program).handle, None, 0, graph.handle) == NOT_SUPPORTED
    )


def test_clone_has_the_nodes_of_its_original(run: Run) -> None:
    program = run()
    graph = program.number("cuGraphCreate", Out(), 0)
    first = program.number("cuGraphAddEmptyNode", Out(), graph, None, 0)
    program.number("cuGraphAddEmptyNode", Out(), graph, struct.pack("<Q", first), 1)
    clone = program.number("cuGraphClone", Out(), graph)
    assert program.number("cuGraphGetNodes", clone, None, Out()) == 2
    assert program.number("cuGraphGetEdges", clone, None, None, Out()) == 1
    assert program.number("cuGraphNodeFindInClone", Out(), first, clone) != first
    assert program.held()["used_bytes"] == CONTEXT
