"""Graphs that allocate: charged what the driver keeps for them, when they run."""

from __future__ import annotations

import pytest

from .conftest import GIB, MIB, OOM, Ground, Worker

CONTEXT = 102 * MIB


def agree(ground: Ground) -> int:
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


def freed_graph(worker: Worker, size: int) -> int:
    """A graph that allocates and frees again."""
    graph: int = worker.out("cuGraphCreate", 0)[1]
    result, node, address = worker.graph_alloc(graph, size)
    assert result == 0
    assert worker.graph_free(graph, address, node)[0] == 0
    return graph


def executable(worker: Worker, graph: int) -> int:
    result, made = worker.out("cuGraphInstantiateWithFlags", graph, 0)
    assert result == 0
    return int(made)


def test_nothing_is_charged_before_a_launch(ground: Ground) -> None:
    worker = ground.worker("2200m")
    executable(worker, freed_graph(worker, GIB))
    assert agree(ground) == CONTEXT


def test_a_launch_is_charged_until_the_reserve_is_trimmed(ground: Ground) -> None:
    worker = ground.worker("2200m")
    graph = executable(worker, freed_graph(worker, GIB))
    for _ in range(3):
        assert worker.call("cuGraphLaunch", graph, 0) == 0
        assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuGraphExecDestroy", graph) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuDeviceGraphMemTrim", 0) == 0
    assert agree(ground) == CONTEXT


def test_graphs_share_the_reserve(ground: Ground) -> None:
    worker = ground.worker("1600m")
    graphs = [executable(worker, freed_graph(worker, GIB)) for _ in range(3)]
    assert [worker.call("cuGraphLaunch", graph, 0) for graph in graphs] == [0, 0, 0]
    assert agree(ground) == GIB + CONTEXT


def test_a_launch_that_does_not_fit_is_refused(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert worker.alloc(GIB + 512 * MIB)[0] == 0
    graph = executable(worker, freed_graph(worker, GIB))
    assert worker.call("cuGraphLaunch", graph, 0) == OOM
    assert worker.call("cuGraphUpload", graph, 0) in (0, OOM)
    assert agree(ground) == GIB + 512 * MIB + CONTEXT
    assert "OOM" in worker.stderr()


def test_memory_that_outlives_its_graph_counts_until_it_is_freed(ground: Ground) -> None:
    worker = ground.worker("2200m")
    graph = worker.out("cuGraphCreate", 0)[1]
    address = worker.graph_alloc(graph, GIB)[2]
    assert worker.call("cuGraphLaunch", executable(worker, graph), 0) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.alloc(GIB + 512 * MIB)[0] == OOM
    assert worker.call("cuMemFree_v2", address) == 0
    assert worker.call("cuDeviceGraphMemTrim", 0) == 0
    assert agree(ground) == CONTEXT


@pytest.mark.parametrize("free", [True, False], ids=["freed", "kept"])
def test_captured_allocations_are_charged_when_launched(ground: Ground, free: bool) -> None:
    worker = ground.worker("2200m")
    result, graph = worker.captured(GIB, free)
    assert result == 0
    assert agree(ground) == CONTEXT
    assert worker.call("cuGraphLaunch", executable(worker, graph), 0) == 0
    assert agree(ground) == GIB + CONTEXT


def test_clones_and_children_allocate_too(ground: Ground) -> None:
    worker = ground.worker("1600m")
    graph = freed_graph(worker, GIB)
    result, clone = worker.out("cuGraphClone", graph)
    if result == 0:  # some drivers refuse to clone allocation nodes
        assert worker.call("cuGraphLaunch", executable(worker, clone), 0) == 0
        assert agree(ground) == GIB + CONTEXT
        assert worker.call("cuDeviceGraphMemTrim", 0) == 0
    parent = worker.out("cuGraphCreate", 0)[1]
    if worker.graph_child(parent, graph)[0] == 0:
        assert worker.call("cuGraphLaunch", executable(worker, parent), 0) == 0
        assert agree(ground) == GIB + CONTEXT
    assert agree(ground) in (CONTEXT, GIB + CONTEXT)
