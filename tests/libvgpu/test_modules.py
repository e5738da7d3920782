"""Modules and libraries: code and globals are charged as modules, and go with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import MIB, OOM, Ground

CONTEXT = 102 * MIB
HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
SMALL = HEAD + ".visible .entry work() { ret; }\n"


def table(kib: int) -> str:
    return HEAD + f".visible .global .align 4 .b8 table[{kib * 1024}];\n.visible .entry work() {{ ret; }}\n"


def big(mib: int) -> str:
    return table(mib * 1024)


def agree(ground: Ground) -> int:
    truth = ground.card.truth()[0]["processes"]
    raw = ground.region.read_bytes()
    modules = sum(
        int.from_bytes(raw[at + 64 + 8 : at + 64 + 16], "little")
        for at in range(256 + 16 * 256, len(raw), 640)
        if raw[at]
    )
    assert modules == sum(p["module_bytes"] for p in truth)
    assert ground.ledger()["used"] == ground.held()
    return modules


@pytest.mark.parametrize("load", ["module_load", "library_load"])
def test_globals_are_charged_until_unloaded(ground: Ground, load: str) -> None:
    worker = ground.worker("600m")
    result, loaded = worker.ask(load, big(100))
    assert result == 0
    look_up, unload = {
        "module_load": ("cuModuleGetFunction", "cuModuleUnload"),
        "library_load": ("cuLibraryGetKernel", "cuLibraryUnload"),
    }[load]
    assert worker.named(look_up, loaded, "work")[0] == 0
    assert agree(ground) >= 100 * MIB
    assert worker.call(unload, loaded) == 0
    assert agree(ground) == 0


def test_modules_that_do_not_fit_are_refused_and_nothing_stays(ground: Ground) -> None:
    worker = ground.worker("302m")
    assert worker.module_load(big(150))[0] == 0
    assert worker.module_load(big(150))[0] == OOM
    assert 150 * MIB <= agree(ground) < 160 * MIB
    assert "OOM" in worker.stderr()


def test_small_modules_share_blocks(ground: Ground) -> None:
    worker = ground.worker("302m")
    loaded = [worker.module_load(SMALL)[1] for _ in range(20)]
    agree(ground)
    for module in loaded:
        assert worker.call("cuModuleUnload", module) == 0
    assert agree(ground) == 0


def test_modules_die_with_their_context(ground: Ground) -> None:
    worker = ground.worker("600m")
    context = worker.out("cuCtxCreate_v2", 0, 0)[1]
    worker.module_load(big(100))
    assert worker.call("cuCtxDestroy_v2", context) == 0
    assert agree(ground) == 0
    worker.module_load(big(100))
    assert worker.call("cuDevicePrimaryCtxReset_v2", 0) == 0
    assert agree(ground) == 0


def test_a_block_that_modules_of_two_contexts_share_goes_with_the_last_of_them(ground: Ground) -> None:
    worker = ground.worker("600m")
    other = worker.out("cuCtxCreate_v2", 0, 0)[1]
    first = worker.out("cuCtxCreate_v2", 0, 0)[1]
    for _ in range(20):
        worker.call("cuCtxSetCurrent", first)
        assert [worker.module_load(table(1000))[0] for _ in range(2)] == [0, 0]
        worker.call("cuCtxSetCurrent", other)
        assert worker.module_load(table(4))[0] == 0
    agree(ground)
    assert worker.call("cuCtxDestroy_v2", first) == 0
    assert agree(ground) > 0
    assert worker.call("cuCtxDestroy_v2", other) == 0
    assert agree(ground) == 0


@pytest.mark.parametrize("current", ["another context", "none"])
def test_a_library_that_is_unloaded_elsewhere_is_given_back(ground: Ground, current: str) -> None:
    worker = ground.worker("600m")
    primary = worker.out("cuCtxGetCurrent")[1]
    worker.out("cuCtxCreate_v2", 0, 0)
    library = worker.library_load(big(100))[1]
    assert worker.out("cuLibraryGetModule", library)[0] == 0
    assert agree(ground) >= 100 * MIB
    worker.call("cuCtxSetCurrent", primary)
    while current == "none" and worker.out("cuCtxGetCurrent")[1]:
        worker.call("cuCtxSetCurrent", 0)
    assert worker.call("cuLibraryUnload", library) == 0
    assert agree(ground) == 0


def test_a_module_of_another_device_is_given_back_there(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("T4", "T4")
    worker = ground.worker("600m")
    here = worker.out("cuCtxGetCurrent")[1]
    worker.call("cuCtxSetCurrent", worker.out("cuDevicePrimaryCtxRetain", 1)[1])
    result, module = worker.module_load(big(100))
    assert result == 0
    worker.call("cuCtxSetCurrent", here)
    assert worker.call("cuModuleUnload", module) == 0
    assert ground.ledger(device=1)["used"] == ground.held(card=1) == CONTEXT


def test_modules_go_with_the_last_context_although_managed_memory_hides_what_they_took(ground: Ground) -> None:
    worker = ground.worker("600m")
    worker.module_load(big(100))
    assert worker.out("cuMemAllocManaged", 200 * MIB, 1)[0] == 0
    assert worker.call("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert ground.ledger()["used"] == ground.held() == 0
