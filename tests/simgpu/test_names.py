"""The driver exports what the real one exports, and its look-up answers as the real one's does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.conftest import BUILD
from tests.simgpu.conftest import Out, Run, simgpu

FACTS = Path(__file__).parent.parent / "symbols" / "facts"
LIBRARY = BUILD / "simgpu" / "libcuda.so.1"
SYMBOLS = BUILD.parent / "csrc" / "simgpu" / "symbols.def"
FOUND, NO_SYMBOL, NO_VERSION = 0, 1, 2


def exported() -> set[str]:
    with LIBRARY.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {
            s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"
        }


def test_real_drivers_names_are_exported() -> None:
    assert set((FACTS / "libcuda-535-exports.txt").read_text().split()) - exported() == set()


def test_nothing_else_is_exported() -> None:
    """Each name is the driver's: none of our own could meet one of the program's."""
    listed = set(re.findall(r"(\w+)\)$", SYMBOLS.read_text(), re.MULTILINE))
    listed |= set(re.findall(r"^PER_THREAD\(\w+, \d+, (\w+),", SYMBOLS.read_text(), re.MULTILINE))
    assert exported() - listed == set()


def test_own_references_cannot_be_interposed() -> None:
    with LIBRARY.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
        needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}  # type: ignore[attr-defined]
    assert "DT_SYMBOLIC" in tags or tags["DT_FLAGS"] & 2
    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}


@pytest.mark.parametrize("runtime", ["cu11", "cu12", "cu13"])
def test_runtimes_lookups_are_answered_by_version_and_stream(run: Run, runtime: str) -> None:
    """Every line of what the CUDA runtime asks at start: the very symbol, or that the version is too old."""
    program = run(started=False)
    addresses: dict[str, int] = {}
    wrong = []
    for line in (FACTS / f"cudart_getproc_{runtime}.txt").read_text().splitlines():
        match = re.fullmatch(r"(\w*?) ?(\d+) flags=(\d) ?(?:->)? ?(\w*)", line)
        assert match, line
        name, version, flags, symbol = match.groups()
        _, (filled, status) = program.ask(
            "call", "cuGetProcAddress_v2", [name, {"out": 8}, int(version), int(flags), {"out": 4}]
        )
        address, answer = (
            int.from_bytes(bytes.fromhex(filled), "little"),
            int.from_bytes(bytes.fromhex(status), "little"),
        )
        if symbol in ("", "VERSION"):
            right = address == 0 and answer == (NO_VERSION if symbol else NO_SYMBOL)
        else:
            addresses.setdefault(symbol, program.ask("address", symbol))
            right = answer == FOUND and address == addresses[symbol]
        if not right:
            wrong.append(line)
    assert wrong == []
    assert len(addresses) > 300


def test_first_form_of_the_lookup_fails_where_nothing_is_found(run: Run) -> None:
    program = run(started=False)
    assert program.code("cuGetProcAddress", "cuMemAlloc", Out(), 12000, 0) == 0
    assert program.code("cuGetProcAddress", "cuNoSuchThing", Out(), 12000, 0) == 500
    assert program.code("cuGetProcAddress", "cuMemAllocAsync", Out(), 10000, 0) == 500
    assert program.code("cuGetProcAddress_v2", "cuNoSuchThing", Out(), 12000, 0, Out(4)) == 0
    assert program.code("cuGetProcAddress_v2", "cuMemAlloc", None, 12000, 0, Out(4)) == 1


def test_missing_symbol_is_missing_for_the_lookup(run: Run) -> None:
    program = run()
    assert simgpu("fault", "--state", program.card.state, "cuMemCreate", "1-", "missing").returncode == 0
    status = program.outputs("cuGetProcAddress_v2", "cuMemCreate", Out(), 12000, 0, Out(4))[1]
    assert int.from_bytes(status, "little") == NO_SYMBOL


def test_functions_without_a_meaning_here_say_so(run: Run) -> None:
    assert run().code("cuGraphicsMapResources", 0, None, None) == 801
