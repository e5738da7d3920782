"""The built library as a file: what it needs, what it shows, and what the dynamic linker must do for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from . import hooklist

LIBC_FLOOR = (2, 17)
RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}


@pytest.fixture(params=["libvgpu.so", "aarch64/libvgpu.so"])
def elf(request: pytest.FixtureRequest, build: Path) -> Iterator[ELFFile]:
    with (build / request.param).open("rb") as stream:
        yield ELFFile(stream)


def _tags(elf: ELFFile) -> dict[str, list[str]]:
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    tags: dict[str, list[str]] = {}
    for tag in dynamic.iter_tags():
        tags.setdefault(tag.entry.d_tag, []).append(
            str(getattr(tag, "needed", getattr(tag, "soname", tag.entry.d_val)))
        )
    return tags


def test_needs_libc_and_nothing_else(elf: ELFFile) -> None:
    assert _tags(elf)["DT_NEEDED"] == ["libc.so.6"]


def test_needs_no_symbol_of_a_libc_newer_than_the_floor(elf: ELFFile) -> None:
    needs = elf.get_section_by_name(".gnu.version_r")
    assert isinstance(needs, GNUVerNeedSection)
    versions = [auxiliary.name for _, auxiliaries in needs.iter_versions() for auxiliary in auxiliaries]
    assert versions
    assert [v for v in versions if tuple(map(int, re.findall(r"\d+", v)))[:2] > LIBC_FLOOR] == []


def test_exports_the_hooks_and_the_routes_and_nothing_else(elf: ELFFile) -> None:
    symbols = elf.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    exported = {s.name for s in symbols.iter_symbols() if s.entry.st_shndx != "SHN_UNDEF" and s.name}
    hooks = hooklist.read()
    assert exported == hooks.hooked | set(hooks.libc) | {"vgpu_version", "vgpu_abi"}


def test_exported_names_have_no_version(elf: ELFFile) -> None:
    """A version would keep a program's reference to dlsym@GLIBC_2.34 from being bound to ours."""
    assert elf.get_section_by_name(".gnu.version_d") is None


def test_does_nothing_when_it_is_loaded_or_unloaded(elf: ELFFile) -> None:
    work = {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY", "DT_TEXTREL"}
    assert work & set(_tags(elf)) == set()


def test_takes_no_thread_local_storage(elf: ELFFile) -> None:
    """Static TLS is scarce for libraries that are loaded later."""
    assert [s for s in elf.iter_segments() if s["p_type"] == "PT_TLS"] == []


def test_does_not_put_itself_at_the_head_of_its_own_scope(elf: ELFFile) -> None:
    """Interposers that were loaded before it would be passed over."""
    assert "DT_SYMBOLIC" not in _tags(elf)
    assert all(not int(flags) & 0x2 for flags in _tags(elf).get("DT_FLAGS", []))


def test_names_and_hooks_cost_no_relocation(elf: ELFFile) -> None:
    """What is relocated is paid by every process of the container, shells included."""
    section = elf.get_section_by_name(".rela.dyn")
    assert isinstance(section, RelocationSection)
    relocations = list(section.iter_relocations())
    relative = [r for r in relocations if r["r_info_type"] == RELATIVE[elf["e_machine"]]]
    assert len(relative) <= 8
    assert len(relocations) <= 96


def test_is_small_in_memory(elf: ELFFile) -> None:
    loaded = sum(segment["p_memsz"] for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD")
    assert loaded <= 512 * 1024


def test_every_hook_has_a_body_of_its_own(elf: ELFFile) -> None:
    """Weak ones only forward: see forward.c."""
    symbols = elf.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    weak = [
        s.name for s in symbols.iter_symbols() if s.entry.st_info.bind == "STB_WEAK" and s.entry.st_shndx != "SHN_UNDEF"
    ]
    assert weak == []
