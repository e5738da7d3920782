"""Contexts: what each takes, and that everything in it dies with it."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import BUILD

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB
STACK, PRINTF, HEAP = 0, 1, 2


def agree(ground: Ground) -> int:
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


def test_a_context_is_charged_what_it_takes(ground: Ground) -> None:
    ground.worker("2200m")
    assert agree(ground) == CONTEXT


def test_every_context_is_charged_and_given_back(ground: Ground) -> None:
    worker = ground.worker("2200m")
    made = [worker.out("cuCtxCreate_v2", 0, 0)[1] for _ in range(3)]
    assert agree(ground) == 4 * CONTEXT
    for context in made:
        assert worker.call("cuCtxDestroy_v2", context) == 0
    assert agree(ground) == CONTEXT


def test_what_is_in_a_context_dies_with_it(ground: Ground) -> None:
    worker = ground.worker("2200m")
    kept = worker.alloc(256 * MIB)[1]
    context = worker.out("cuCtxCreate_v2", 0, 0)[1]
    assert worker.alloc(GIB)[0] == 0
    assert worker.fill(1000, 500) == 500
    assert worker.out("cuMemAllocManaged", 4 * MIB, 1)[0] == 0
    assert worker.call("cuCtxDestroy_v2", context) == 0
    assert agree(ground) == 256 * MIB + CONTEXT
    assert worker.call("cuMemFree_v2", kept) == 0
    assert agree(ground) == CONTEXT


@pytest.mark.parametrize("release", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"])
def test_the_last_release_gives_everything_back(ground: Ground, release: str) -> None:
    worker = ground.worker("2200m")
    worker.out("cuDevicePrimaryCtxRetain", 0)
    worker.alloc(GIB)
    assert worker.call(release, 0) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call(release, 0) == 0
    assert agree(ground) == 0
    assert worker.start() == [0, 0, 0]
    assert agree(ground) == CONTEXT


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"])
def test_a_reset_gives_back_what_was_in_the_context(ground: Ground, reset: str) -> None:
    worker = ground.worker("2200m")
    worker.alloc(GIB)
    worker.out("cuMemAllocAsync", 512 * MIB, 0)
    assert worker.call(reset, 0) == 0
    assert agree(ground) == CONTEXT


def test_a_limit_below_a_context_refuses_the_context(ground: Ground) -> None:
    worker = ground.worker("100m", device=None)
    assert worker.start()[:2] == [0, OOM]
    assert agree(ground) == 0


def test_a_context_that_just_fits_is_granted(ground: Ground) -> None:
    worker = ground.worker("102m")
    assert worker.alloc(1)[0] == OOM
    assert agree(ground) == CONTEXT


def test_a_second_context_is_refused_where_it_does_not_fit(ground: Ground) -> None:
    worker = ground.worker("300m")
    assert worker.alloc(100 * MIB)[0] == 0
    assert worker.out("cuCtxCreate_v2", 0, 0)[0] == OOM
    assert agree(ground) == 100 * MIB + CONTEXT


def test_detaching_the_last_time_destroys(ground: Ground) -> None:
    worker = ground.worker("2200m")
    context = worker.out("cuCtxCreate_v2", 0, 0)[1]
    worker.alloc(GIB)
    assert worker.out("cuCtxAttach", 0)[0] == 0
    assert worker.call("cuCtxDetach", context) == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert worker.call("cuCtxDetach", context) == 0
    assert agree(ground) == CONTEXT


def test_raised_heap_and_printf_buffers_are_charged(ground: Ground) -> None:
    worker = ground.worker("600m")
    assert worker.call("cuCtxSetLimit", HEAP, 256 * MIB) == 0
    assert worker.call("cuCtxSetLimit", PRINTF, 64 * MIB) == 0
    agree(ground)
    assert worker.call("cuCtxSetLimit", HEAP, 500 * MIB) == OOM
    agree(ground)
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert agree(ground) == 0


def test_a_context_is_measured_rightly_beside_a_busy_neighbour(ground: Ground) -> None:
    """The neighbour takes and frees memory all the time; the figure for this process isn't touched by that."""
    neighbour = subprocess.Popen([BUILD / "simgpu" / "simgpu", "neighbour", "--state", str(ground.card.state)])
    try:
        for _ in range(8):
            worker = ground.worker("2200m")
            assert ground.held(worker) == CONTEXT
            worker.info()  # looks for the dead
            assert ground.ledger()["used"] == CONTEXT
            worker.kill()
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_green_context_keeps_the_primary_one_alive(ground: Ground) -> None:
    worker = ground.worker("2200m", device=None)
    assert worker.call("cuInit", 0) == 0
    result, green = worker.green()
    assert result == 0
    assert agree(ground) == CONTEXT
    assert worker.start() == [0, 0, 0]
    assert agree(ground) == CONTEXT
    second = worker.green()[1]
    worker.alloc(GIB)
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuGreenCtxDestroy", green) == 0
    assert worker.call("cuGreenCtxDestroy", second) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert agree(ground) == 0


def test_the_last_green_context_takes_everything_with_it(ground: Ground) -> None:
    worker = ground.worker("2200m")
    green = worker.green()[1]
    worker.alloc(GIB)
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert agree(ground) == GIB + CONTEXT
    assert worker.call("cuGreenCtxDestroy", green) == 0
    assert agree(ground) == 0


def test_processes_that_start_together_in_pid_namespaces_are_each_measured_rightly(ground: Ground, root: None) -> None:
    """NVML lists them under pids of the host, which they don't know: several appear at once."""
    wrap = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    workers = [ground.worker("8g", device=None, wrap=wrap) for _ in range(6)]
    for worker in workers:
        worker.send("start")
    assert [worker.receive() for worker in workers] == [[0, 0, 0]] * 6
    assert agree(ground) == 6 * CONTEXT


def test_a_detach_that_leaves_the_primary_context_alive_gives_nothing_back(ground: Ground) -> None:
    worker = ground.worker("2200m")
    primary = worker.out("cuCtxGetCurrent")[1]
    worker.alloc(GIB)
    worker.call("cuCtxDetach", primary)
    assert agree(ground) == GIB + CONTEXT
