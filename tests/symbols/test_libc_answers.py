"""For names that aren't the driver's, dlsym and dlvsym answer exactly as libc does: address, failure and message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .routes import Routes

MADE_UP = [
    "cu", "cuda", "cuFoo", "cublasCreate_v2", "cudaMalloc", "cuMemAlloc_v2x", "cuMemAllo", "nv", "nvmlInit_v2", "dl",
    "dladdr", "dladdr1", "dlclose", "dlerror", "dlinfo", "dlopenx", "d", "", "route_caller_find", "route_caller_bound",
    "cuStreamQuery", "cuMemAlloc_v9", "vgpu", "main", "environ", "errno",
]  # fmt: skip
OURS = {"dlopen", "dlmopen", "dlsym", "dlvsym"}


def _names_of_libc() -> list[str]:
    """Every function and variable of this machine's libc and libm."""
    maps = Path("/proc/self/maps").read_text()
    libc = next(Path(m) for m in re.findall(r"(/\S*libc[.-]\S*)$", maps, re.M))
    names = set()
    for path in (libc, libc.parent / "libm.so.6"):
        with path.open("rb") as stream:
            symbols = ELFFile(stream).get_section_by_name(".dynsym")
            assert isinstance(symbols, SymbolTableSection)
            names |= {s.name for s in symbols.iter_symbols() if s.name}
    return sorted(names - OURS)


@pytest.fixture(scope="module")
def answers(routes: Routes) -> dict[str, list[str]]:
    text = "\n".join(MADE_UP + _names_of_libc()) + "\n"
    return {
        "bare": routes.run("route_names", text=text).splitlines(),
        "with the library": routes.run("route_names", text=text, preload=(routes.library,)).splitlines(),
    }


def test_answers_are_libcs_own(answers: dict[str, list[str]]) -> None:
    assert len(answers["bare"]) > 20_000
    differing = [pair for pair in zip(answers["bare"], answers["with the library"], strict=True) if pair[0] != pair[1]]
    assert differing == []


def test_next_is_relative_to_the_caller(answers: dict[str, list[str]]) -> None:
    """A function of the caller's own library isn't its own next one, but the program's next one."""
    said = {tuple(line.rsplit(" ", 2)[:2]): line for line in answers["with the library"] if "undefined" not in line}
    assert ("next", "route_caller_find") in said
    assert ("caller's next", "route_caller_find") not in said
