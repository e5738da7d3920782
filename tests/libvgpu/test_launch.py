"""What the driver takes by itself when kernels are launched and streams are made, as it was measured on a real card."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.conftest import BUILD

from .conftest import MIB, OOM, WORKER, Ground

CONTEXT = 102 * MIB
HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
LOCAL = 16384
KERNEL = HEAD + f".visible .entry work() {{ .local .align 4 .b8 scratch[{LOCAL}]; ret; }}\n"
PLAIN = HEAD + ".visible .entry work() { ret; }\n"
GROWTH = (LOCAL - 1024) * 40 * 1024  # a T4: 40 multiprocessors of 1024 threads, which have 1024 bytes each


def by_name(ask: Callable[..., Any]) -> int:
    return int(ask("named", "cuModuleGetFunction", ask("module_load", KERNEL)[1], "work")[1])


def of_module(ask: Callable[..., Any]) -> int:
    module = ask("module_load", KERNEL)[1]
    return int(ask("all_of", "cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", module)[1])


def of_library(ask: Callable[..., Any]) -> int:
    library = ask("library_load", KERNEL)[1]
    return int(ask("all_of", "cuLibraryGetKernelCount", "cuLibraryEnumerateKernels", library)[1])


def kernel(ask: Callable[..., Any]) -> int:
    return int(ask("named", "cuLibraryGetKernel", ask("library_load", KERNEL)[1], "work")[1])


def function_of_kernel(ask: Callable[..., Any]) -> int:
    return int(ask("out", "cuKernelGetFunction", kernel(ask))[1])


WAYS = [by_name, of_module, of_library, kernel, function_of_kernel]


@pytest.mark.parametrize("way", WAYS)
def test_local_memory_is_charged_with_the_first_launch(ground: Ground, way: Callable[..., int]) -> None:
    worker = ground.worker("2200m")
    function = way(worker.ask)
    assert worker.launch(function) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT + GROWTH + 2 * MIB
    assert worker.launch(function) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT + GROWTH + 2 * MIB


@pytest.mark.parametrize("way", WAYS)
def test_local_memory_beyond_the_quota_is_refused(ground: Ground, way: Callable[..., int]) -> None:
    worker = ground.worker("700m")
    function = way(worker.ask)
    assert worker.launch(function) == OOM
    assert ground.ledger()["used"] == ground.held() <= CONTEXT + 2 * MIB
    assert ground.ledger()["refusals"] == 1
    plain = worker.named("cuModuleGetFunction", worker.module_load(PLAIN)[1], "work")[1]
    assert worker.launch(plain) == 0


def test_local_memory_of_a_graph_is_charged_before_it_can_run(ground: Ground) -> None:
    worker = ground.worker("2200m")
    result, graph = worker.captured_launch(by_name(worker.ask))
    assert result == 0
    assert worker.out("cuGraphInstantiateWithFlags", graph, 0)[0] == 0
    assert ground.ledger()["used"] >= ground.held() + GROWTH
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    assert worker.call("cuGraphLaunch", executable, 0) == 0
    assert ground.ledger()["used"] == ground.held()


def test_graph_whose_local_memory_is_beyond_the_quota_cannot_be_made_executable(ground: Ground) -> None:
    worker = ground.worker("700m")
    graph = worker.captured_launch(by_name(worker.ask))[1]
    assert worker.out("cuGraphInstantiateWithFlags", graph, 0) == [OOM, 0]
    assert ground.ledger()["used"] == ground.held()


def test_local_memory_goes_with_the_context(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert worker.launch(by_name(worker.ask)) == 0
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert ground.ledger()["used"] == ground.held() == 0
    assert worker.start() == [0, 0, 0]
    assert worker.launch(by_name(worker.ask)) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT + GROWTH + 2 * MIB


def test_graph_that_launches_another_kernel_takes_no_more_than_fits(ground: Ground) -> None:
    """A kernel of an executable graph may be changed, or all of them."""
    worker = ground.worker("700m")
    deep = by_name(worker.ask)
    plain = worker.named("cuModuleGetFunction", worker.module_load(PLAIN)[1], "work")[1]
    graph, deep_graph = worker.captured_launch(plain)[1], worker.captured_launch(deep)[1]
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    assert worker.call("cuGraphLaunch", executable, 0) == 0
    assert worker.set_kernel(executable, graph, deep) == OOM
    assert worker.call("cuGraphExecUpdate_v2", executable, deep_graph, 0) == OOM
    assert worker.call("cuGraphLaunch", executable, 0) == 0
    assert ground.ledger()["used"] == ground.held() < 200 * MIB


def test_room_for_a_graph_is_charged_again_after_it_was_given_back(ground: Ground) -> None:
    worker = ground.worker("1000m")
    graph = worker.captured_launch(by_name(worker.ask))[1]
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    assert worker.call("cuGraphLaunch", executable, 0) == 0
    assert worker.call("cuCtxSetLimit", 0, 1024) == 0
    assert ground.ledger()["used"] == ground.held() < 200 * MIB
    assert worker.alloc(600 * MIB)[0] == 0
    assert worker.call("cuGraphLaunch", executable, 0) == OOM
    assert ground.ledger()["used"] == ground.held() <= 1000 * MIB


def test_graph_is_charged_where_it_is_launched(ground: Ground) -> None:
    worker = ground.worker("1000m")
    executable = worker.out("cuGraphInstantiateWithFlags", worker.captured_launch(by_name(worker.ask))[1], 0)[1]
    assert worker.out("cuCtxCreate_v2", 0, 0)[0] == 0
    assert worker.call("cuGraphLaunch", executable, 0) == OOM
    assert ground.held() <= ground.ledger()["used"] <= 1000 * MIB


def test_kernels_handed_out_without_a_context_are_known_too(ground: Ground) -> None:
    """Libraries belong to no context, and their kernels can be launched as they are."""
    for way in (of_library, kernel):
        worker = ground.worker("700m")
        context = worker.out("cuCtxGetCurrent")[1]
        assert worker.call("cuCtxSetCurrent", 0) == 0
        function = way(worker.ask)
        assert worker.call("cuCtxSetCurrent", context) == 0
        assert worker.launch(function) == OOM
        worker.kill()


def test_kernel_that_gets_the_handle_of_an_unloaded_one_is_another(ground: Ground) -> None:
    worker = ground.worker("700m")
    for _ in range(20):
        library = worker.library_load(PLAIN)[1]
        one = worker.named("cuLibraryGetKernel", library, "work")[1]
        assert worker.launch(worker.out("cuKernelGetFunction", one)[1]) == 0
        assert worker.call("cuLibraryUnload", library) == 0
        library = worker.library_load(KERNEL)[1]
        other = worker.named("cuLibraryGetKernel", library, "work")[1]
        assert worker.launch(worker.out("cuKernelGetFunction", other)[1]) == OOM
        assert worker.call("cuLibraryUnload", library) == 0
        if one == other:
            break
    assert ground.ledger()["used"] == ground.held() < 200 * MIB


def test_stack_limit_that_does_not_fit_gives_back_what_it_takes_back(ground: Ground) -> None:
    """It is set to what it was before, and with that the driver takes back the room that a launch has made."""
    worker = ground.worker("1000m")
    function = by_name(worker.ask)
    assert worker.launch(function) == 0
    assert worker.call("cuCtxSetLimit", 0, 2 * LOCAL) == OOM
    assert ground.ledger()["used"] == ground.held()
    assert worker.launch(function) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT + GROWTH + 2 * MIB


def test_code_that_came_with_a_launch_goes_with_its_library(ground: Ground) -> None:
    worker = ground.worker("2200m")
    library = worker.library_load(KERNEL)[1]
    function = worker.all_of("cuLibraryGetKernelCount", "cuLibraryEnumerateKernels", library)[1]
    assert worker.launch(function) == 0
    assert worker.call("cuLibraryUnload", library) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT + GROWTH


def test_stack_limit_and_local_memory_are_one_room(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert worker.call("cuCtxSetLimit", 0, LOCAL) == 0
    used = ground.ledger()["used"]
    assert used == ground.held() == CONTEXT + GROWTH
    assert worker.launch(by_name(worker.ask)) == 0
    assert ground.ledger()["used"] == ground.held() == used + 2 * MIB


def test_function_of_a_kernel_costs_a_measurement_only_once(ground: Ground) -> None:
    """The CUDA runtime asks for it at every launch of some kernels: 42 times in a step of a small PyTorch model."""
    worker = ground.worker("2200m")
    one = kernel(worker.ask)
    measured = worker.fastest(300, "cuStreamCreate", 1)
    assert worker.fastest(300, "cuKernelGetFunction", one) < measured / 2


@pytest.mark.parametrize(("name", "more"), [("cuStreamCreate", []), ("cuStreamCreateWithPriority", [0])])
def test_streams_are_charged_what_they_take(ground: Ground, name: str, more: list[int]) -> None:
    worker = ground.worker("2200m")
    streams = [worker.out(name, 1, *more)[1] for _ in range(64)]
    used = ground.ledger()["used"]
    assert used == ground.held() > CONTEXT + 30 * MIB
    for stream in streams:
        assert worker.call("cuStreamDestroy_v2", stream) == 0
    assert ground.ledger()["used"] == ground.held() == used
    for _ in range(64):
        assert worker.out(name, 1, *more)[0] == 0
    assert ground.ledger()["used"] == ground.held() == used


def test_streams_beyond_the_quota_are_refused(ground: Ground) -> None:
    worker = ground.worker("122m")
    results = [worker.out("cuStreamCreate", 1)[0] for _ in range(40)]
    assert results[:16] == [0] * 16
    assert results[-1] == OOM
    assert ground.ledger()["used"] == ground.held() <= 122 * MIB


def test_streams_cost_no_more_where_there_is_no_nvml(ground: Ground, tmp_path: Path) -> None:
    """What the driver keeps of a destroyed stream for the next isn't charged again with that."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").symlink_to(BUILD / "simgpu" / "libcuda.so.1")
    worker = ground.worker("400m", env={"LD_LIBRARY_PATH": str(driver)})
    used = ground.ledger()["used"]
    for _ in range(150):
        result, stream = worker.out("cuStreamCreate", 1)
        assert result == 0
        assert worker.call("cuStreamDestroy_v2", stream) == 0
    assert ground.ledger()["used"] == used


def test_streams_of_a_green_context_are_charged_to_its_device(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("T4", "T4")
    worker = ground.worker("300m")
    green = worker.green(1)[1]
    for _ in range(20):
        assert worker.out("cuGreenCtxStreamCreate", green, 1, 0)[0] == 0
    assert ground.ledger(device=1)["used"] == ground.held(card=1) > CONTEXT
    assert worker.call("cuCtxSetCurrent", 0) == 0
    for _ in range(20):
        assert worker.out("cuGreenCtxStreamCreate", green, 1, 0)[0] == 0
    assert ground.ledger(device=1)["used"] == ground.held(card=1)


def place_in_driver(name: str) -> int:
    with (BUILD / "simgpu" / "libcuda.so.1").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        (symbol,) = symbols.get_symbol_by_name(name) or []
        return int(symbol["st_value"])


def settled(ground: Ground, ask: Callable[[], object]) -> bool:
    """Whether ledger and card agree within a few seconds of calls."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        ask()
        if ground.ledger()["used"] == ground.held():
            return True
        time.sleep(0.1)
    return False


def test_memory_that_no_hook_saw_is_charged_within_seconds(ground: Ground) -> None:
    """A tenant who finds the driver's function by himself gets memory, and pays for it."""
    worker = ground.worker("1000m")
    result, address = worker.past(place_in_driver("cuMemAlloc_v2"), 600 * MIB)
    assert result == 0
    assert ground.held() > ground.ledger()["used"]
    assert settled(ground, worker.info)
    assert worker.alloc(400 * MIB)[0] == OOM
    assert worker.call("cuMemFree_v2", address) == 0
    assert settled(ground, worker.info)
    assert worker.alloc(400 * MIB)[0] == 0


def test_what_no_hook_saw_is_charged_after_exec_too(ground: Ground) -> None:
    """The slot of the program that this process was before is nobody's."""
    worker = ground.worker("1000m", device=None)
    worker.nvml()
    again = ["/bin/sh", "-c", 'echo 1; exec "$0" -S "$1"', sys.executable, str(WORKER)]
    assert worker.become(*again) == 1
    assert worker.start() == [0, 0, 0]
    assert worker.past(place_in_driver("cuMemAlloc_v2"), 600 * MIB)[0] == 0
    assert settled(ground, worker.info)


def test_stack_limit_gives_back_what_was_charged_as_the_drivers_own_doing(ground: Ground) -> None:
    worker = ground.worker("2200m")
    assert worker.launch_on_several(by_name(worker.ask)) == 0
    assert settled(ground, worker.info)
    assert worker.call("cuCtxSetLimit", 0, 1024) == 0
    assert ground.ledger()["used"] == ground.held()
    other = worker.out("cuCtxCreate_v2", 0, 0)[1]
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert ground.ledger()["used"] == ground.held() == CONTEXT
    assert worker.call("cuCtxDestroy_v2", other) == 0
    assert ground.ledger()["used"] == ground.held() == 0
