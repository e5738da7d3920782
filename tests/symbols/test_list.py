"""hooks.def against the vendor's headers and a real driver's exports: nothing forgotten, nothing misdescribed."""

from __future__ import annotations

import re

import pytest

from . import hooklist, vendor
from .hooklist import Hook, HookList
from .vendor import Headers

# Functions that take or give back memory by their name. One that isn't hooked needs one of the reasons below.
TAKES_MEMORY = re.compile(
    r"Alloc|Free|MemCreate|MemRelease|Mem(Un)?[mM]ap|ArrayCreate|Array3DCreate|ArrayDestroy"
    r"|Ctx(Create|Destroy|Attach|Detach|Retain|Release|Reset)(_|$)|CtxFromGreenCtx|MemPool(Create|Destroy|Trim|Import)"
    r"|(Module|Library)(Load|Unload)|FuncLoad|OpenMemHandle|CloseMemHandle|ImportExternalMemory|DestroyExternalMemory"
    r"|GraphLaunch|GraphInstantiate|GraphMemTrim|MulticastCreate|Ctx(Set|Push|Pop)Current|MemGetInfo|TotalMem"
)
HARMLESS_ALL_THE_SAME = {
    "host memory",
    "address space and access rights: no memory of their own",
    "questions about memory that the program holds already",
    "memory that belongs to a graphics interface",
    "graph nodes that take no device memory; memory nodes can't be changed once they are there",
    "a graph takes memory when it is launched: its nodes are looked through when it becomes executable",
    "which context is current, or behind a green one, is asked of the driver by each hook that must know it",
    "takes no memory by itself: what is imported, bound or allocated through it is accounted there",
    "code: what loads it is accounted, this only describes or tunes it",
}
NVML_MEMORY = re.compile(r"Mem|F[bB]|Framebuffer|BAR1|Process|Accounting|Attributes|FieldValue|Sample")

# Declared in headers that need a graphics toolkit, or left out of cudaTypedefs.h.
NO_TYPEDEF = ("cuGLCtxCreate", "cuVDPAUCtxCreate", "cuGreenCtx", "cuCtxFromGreenCtx", "cuGetProcAddress")
# Where our own declarations are plainer than the vendor's.
SAME_TYPE = {
    "cuuint64_t": "uint64_t",
    "CUdeviceptr_v2": "CUdeviceptr",
    "CUjit_option": "int",
    "CUlibraryOption": "int",
    "CUgraphExecUpdateResult": "int",
    "CUmulticastGranularity_flags": "int",
    "CUcontext_st": "CUctx_st",
}


@pytest.fixture(scope="module")
def hooks() -> HookList:
    return hooklist.read()


@pytest.fixture(scope="module")
def headers() -> dict[str, Headers]:
    return {version: vendor.cuda(folder) for version, folder in vendor.include_folders().items()}


@pytest.fixture(scope="module")
def interface(headers: dict[str, Headers]) -> set[str]:
    """Every function of the driver that is known: headers of CUDA 12 and 13, exports of a real driver."""
    declared = {name for header in headers.values() for name in header.functions}
    return declared | set(vendor.exports("libcuda-535-exports.txt"))


def test_table_is_sorted_as_strcmp_does(hooks: HookList) -> None:
    assert hooks.table == sorted(hooks.table, key=str.encode)
    assert len(hooks.table) == len(set(hooks.table))


def test_every_function_of_the_driver_is_hooked_or_listed_with_a_reason(hooks: HookList, interface: set[str]) -> None:
    named = {hook.symbol for hook in hooks.driver} | {n for n in hooks.passed_names if n.startswith("cu")}
    assert sorted(interface - named) == []
    assert sorted(named - interface) == [], "named, but neither a header nor a driver has it"


def test_no_function_is_named_twice(hooks: HookList) -> None:
    names = [*hooks.table, *hooks.passed_names]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_functions_that_take_memory_by_their_name_are_hooked(hooks: HookList) -> None:
    escaped = [
        name
        for reason, names in hooks.passed.items()
        for name in names
        if name.startswith("cu") and TAKES_MEMORY.search(name) and reason not in HARMLESS_ALL_THE_SAME
    ]
    assert escaped == []


def test_nvmls_functions_about_memory_are_hooked_or_listed(hooks: HookList) -> None:
    declared = set(vendor.nvml(vendor.include_folders()["13"])) | set(vendor.exports("libnvml-535-exports.txt"))
    about_memory = {name for name in declared if NVML_MEMORY.search(name)}
    named = {hook.symbol for hook in hooks.nvml} | {n for n in hooks.passed_names if n.startswith("nvml")}
    assert sorted(about_memory - named) == []
    assert sorted(named - declared) == []


def _types(parameters: str) -> list[str]:
    """Types only: names, spaces and array brackets taken off."""
    types = []
    for parameter in parameters.split(","):
        pointers = "*" * (parameter.count("*") + parameter.count("["))
        words = re.sub(r"\[.*?\]", "", parameter.replace("*", " ")).split()
        if len(words) > 1 and words != ["unsigned", "int"]:
            words = words[:-1]
        words = [SAME_TYPE.get(word, word) for word in words if word != "struct"]
        types.append(" ".join(words) + pointers)
    return types


def test_parameters_are_the_vendors(hooks: HookList, headers: dict[str, Headers]) -> None:
    wrong = []
    described = {hook.symbol: hook.parameters for hook in hooks.driver} | hooks.used
    for symbol, parameters in described.items():
        for version, header in headers.items():
            declared = header.functions.get(symbol)
            if declared is not None and _types(declared) != _types(parameters):
                wrong.append((version, symbol, _types(declared), _types(parameters)))
    assert wrong == []


def _typedef_versions(hook: Hook, headers: dict[str, Headers]) -> set[int]:
    name = hook.base + ("_ptsz" if hook.per_thread else "")
    return {version for header in headers.values() for version in header.versions.get(name, set())}


def test_versions_are_the_vendors(hooks: HookList, headers: dict[str, Headers]) -> None:
    """Each symbol's version has a typedef, and all versions of a base name that have one are in the list."""
    known = [hook for hook in hooks.driver if not hook.base.startswith(NO_TYPEDEF)]
    assert [h.symbol for h in known if h.since not in _typedef_versions(h, headers)] == []
    listed: dict[tuple[str, bool], set[int]] = {}
    for hook in known:
        listed.setdefault((hook.base, hook.per_thread), set()).add(hook.since)
    missing = {
        (hook.base, version)
        for hook in known
        for version in _typedef_versions(hook, headers) - listed[hook.base, hook.per_thread]
    }
    assert missing == set()


def test_a_symbol_is_its_base_name_with_a_suffix(hooks: HookList) -> None:
    for hook in hooks.driver:
        suffix = r"(_v\d)?_pt[sd][sz]" if hook.per_thread else r"(_v\d)?"
        assert re.fullmatch(re.escape(hook.base) + suffix, hook.symbol), hook.symbol


def test_what_is_done_is_one_of_the_four(hooks: HookList) -> None:
    assert {hook.what for hook in hooks.driver + hooks.nvml} == set(hooklist.WHAT)


def test_readme_has_the_list(hooks: HookList) -> None:
    """`python -m tests.symbols.hooklist` brings it up to date."""
    readme = hooklist.README.read_text()
    assert readme == hooklist.with_list(readme, hooks)
