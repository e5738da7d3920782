"""Every way from a program to the driver leads through the library, and through nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from .routes import Routes

OURS, DRIVER, CALLER = "libvgpu.so", "libcuda.so.1", "libroute_caller.so"

LOOKUPS_BY_NAME = [
    "handle",
    "default",
    "next",
    "program",
    "dlsym-by-next",
    "dlsym-by-default",
    "dlsym-by-libc",
    "dlsym-by-dlvsym",
    "dlvsym-by-dlsym",
    "dlmopen",
]
LOOKUPS_BY_DRIVER = ["get", "get-v2", "get-v2-per-thread", "get-by-get"]
CALLERS = [f"{how}-{way}" for how in ("caller", "deepbind", "dlmopen") for way in ("next", "default", "bound")]


@pytest.mark.parametrize("way", LOOKUPS_BY_NAME)
def test_lookup_by_name_gives_the_hook(routes: Routes, way: str) -> None:
    assert routes.where(way, "cuMemAlloc_v2", bare=True) == DRIVER
    assert routes.where(way, "cuMemAlloc_v2") == OURS


@pytest.mark.parametrize("way", LOOKUPS_BY_DRIVER)
def test_lookup_through_the_driver_gives_the_hook(routes: Routes, way: str) -> None:
    assert routes.where(way, "cuMemAlloc", bare=True) == DRIVER
    assert routes.where(way, "cuMemAlloc") == OURS


@pytest.mark.parametrize("way", LOOKUPS_BY_DRIVER)
def test_driver_that_gives_unexported_addresses_is_understood_by_version(routes: Routes, way: str) -> None:
    driver = routes.folder / "unexported" / DRIVER
    assert routes.where(way, "cuMemAlloc", driver) == OURS
    assert routes.where(way, "cuLaunchKernel", driver) == OURS
    assert routes.where(way, "cuStreamQuery", driver) == DRIVER


@pytest.mark.parametrize("way", CALLERS)
def test_library_loaded_at_run_time_gets_the_hook(routes: Routes, way: str) -> None:
    """Also with RTLD_DEEPBIND and in a namespace of its own, by look-up and by its own undefined symbol."""
    assert routes.where(way, "cuMemAlloc_v2", CALLER) == OURS


@pytest.mark.parametrize("way", LOOKUPS_BY_NAME)
def test_function_that_the_list_does_not_know_stays_the_drivers(routes: Routes, way: str) -> None:
    assert routes.where(way, "cuMemAlloc_v9") == DRIVER
    assert routes.where(way, "cuStreamQuery") == DRIVER


@pytest.mark.parametrize("driver", ["", "unexported"])
def test_version_newer_than_the_list_stays_the_drivers(routes: Routes, driver: str) -> None:
    """Its parameters can't be known: cuMemAlloc as of CUDA 99 is this driver's cuMemAlloc_v9."""
    assert routes.where("get-newest", "cuMemAlloc", routes.folder / driver / DRIVER) == DRIVER


@pytest.mark.parametrize("way", ["handle", "get", "get-v2"])
def test_function_that_an_older_driver_lacks_is_absent_in_the_same_words(routes: Routes, way: str) -> None:
    older = routes.folder / "older" / DRIVER
    bare = routes.where(way, "cuMemAllocAsync", older, bare=True)
    assert bare.startswith("absent: ")
    assert routes.where(way, "cuMemAllocAsync", older) == bare


@pytest.mark.parametrize("way", ["undriven-default", "undriven-next", "undriven-program"])
def test_driver_functions_are_absent_where_no_driver_is_loaded(routes: Routes, way: str) -> None:
    """A program asks this way whether it has a driver. The message is libc's own, with a version behind the name."""
    bare = routes.where(way, "cuMemAlloc_v2", bare=True)
    assert bare == "absent: route_where: undefined symbol: cuMemAlloc_v2"
    assert routes.where(way, "cuMemAlloc_v2") == f"{bare}, version none"


@pytest.mark.parametrize("way", ["default", "next", "program"])
def test_function_that_an_older_driver_lacks_is_absent_by_name(routes: Routes, way: str) -> None:
    older = routes.folder / "older" / DRIVER
    assert routes.where(way, "cuMemAllocAsync", older).startswith("absent: route_where: undefined symbol")


def test_second_copy_of_the_driver_is_led_to_the_hooks_too(routes: Routes) -> None:
    copy = routes.copy(routes.folder / DRIVER, "driver-under-another-name.so")
    assert routes.where("handle", "cuMemAlloc_v2", copy) == OURS


def test_program_that_never_loads_libdl_reaches_the_driver(routes: Routes) -> None:
    """Before glibc 2.34 dlsym and its like aren't even loaded here."""
    assert routes.run("route_direct", preload=(routes.library,)) == "702\n"


@pytest.mark.parametrize("when", ["ROUTE_CONSTRUCTOR", "ROUTE_DESTRUCTOR"])
def test_calls_before_and_after_main_go_through_the_library(routes: Routes, when: str) -> None:
    """Entered through the dynamic linker's own binding before anything was looked up, and when all is being undone."""
    said = routes.run(
        "route_where", "undriven-default", "nothing", preload=(routes.library, routes.folder / CALLER),
        environment={when: "1"},
    )  # fmt: skip
    lines = [line for line in said.splitlines() if line.startswith(when)]
    assert [Path(line.split()[1]).name for line in lines] == [OURS, OURS]


@pytest.mark.parametrize("limit", [None, "0"])
def test_deepbind_keeps_its_meaning_without_a_limit(routes: Routes, limit: str | None) -> None:
    assert routes.where("deepbind-bound", "cuMemAlloc_v2", CALLER, limit=limit) == DRIVER


@pytest.mark.parametrize("limit", [None, "0"])
def test_new_namespace_is_left_alone_without_a_limit(routes: Routes, limit: str | None) -> None:
    assert routes.where("dlmopen", "cuMemAlloc_v2", limit=limit) == DRIVER


def test_interposer_before_us_keeps_its_place_in_the_chain(routes: Routes) -> None:
    """It wraps dlsym and cuMemAlloc_v2: programs get its function, and its RTLD_NEXT gets ours."""
    wrapper = routes.folder / "libroute_wrapper.so"
    chain = routes.run("route_chain", preload=(wrapper, routes.library))
    assert chain.split() == ["libroute_wrapper.so", OURS, "10702"]


def test_interposer_behind_us_is_passed_over_without_harm(routes: Routes) -> None:
    wrapper = routes.folder / "libroute_wrapper.so"
    chain = routes.run("route_chain", preload=(routes.library, wrapper))
    assert chain.split() == [OURS, OURS, "702"]


def test_plugin_with_a_driver_functions_name_keeps_it(routes: Routes) -> None:
    """By its own handle a plugin's function is the plugin's; what the plugin gets as the next one is ours."""
    plugin = routes.folder / "libroute_wrapper.so"
    assert routes.where("handle", "cuMemAlloc_v2", plugin) == "libroute_wrapper.so"
    assert routes.where("handle", "cuMemAlloc_v2", plugin, bare=True) == "libroute_wrapper.so"


def test_message_of_a_failed_lookup_survives_calls_of_hooks(routes: Routes) -> None:
    """Hooks read symbol tables themselves: dlerror() and errno are the program's."""
    assert routes.run("route_errors", preload=(routes.library,)) == routes.run("route_errors")


def test_a_sanitizer_can_look_up_what_it_stands_in_for(routes: Routes) -> None:
    """Before its own strcmp() and dl_iterate_phdr() can be called: no look-up may call them."""
    assert routes.run("route_early", preload=(routes.library,)) == routes.run("route_early")


def test_namespaces_do_not_run_out_when_a_program_opens_and_closes_them(routes: Routes) -> None:
    """glibc has 16: one in which nothing of the program's is left is used again."""
    said = routes.run("route_namespaces", preload=(routes.library,), environment={"CUDA_DEVICE_MEMORY_LIMIT": "1g"})
    assert said == "100 rounds\n"


def test_driver_that_was_closed_and_opened_again_is_still_reached(routes: Routes) -> None:
    assert routes.run("route_reopen", preload=(routes.library,)) == "702 702\n" * 3


def test_threads_may_race_for_the_first_lookup(routes: Routes) -> None:
    assert routes.run("route_threads", preload=(routes.library,)) == "0 of 100 failed\n"


@pytest.mark.parametrize(
    "command",
    [["/bin/true"], ["/bin/bash", "-c", "echo $((6 * 7)) $(echo forked)"], ["/usr/bin/perl", "-e", "print 42"]],
)
def test_ordinary_programs_run_unchanged(routes: Routes, command: list[str]) -> None:
    """Without a driver nothing happens: same output, and not a word on stderr."""
    assert routes.run(*command, preload=(routes.library,)) == routes.run(*command)
