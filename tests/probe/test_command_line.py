"""The probe tells a wrong command line, a machine without a driver and a broken promise apart by its exit code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from tests.conftest import BUILD
from tests.probe.conftest import GIB, MIB, PROBE, Probe

BINARY_SIZES = {
    "1": 1,
    "512b": 512,
    "1k": 1 << 10,
    "4147m": 4147 * MIB,
    "4147M": 4147 * MIB,
    "3g": 3 * GIB,
    "3Gi": 3 * GIB,
    "3GiB": 3 * GIB,
    "3GB": 3 * GIB,
    "1Ti": 1 << 40,
}


@pytest.mark.parametrize(("text", "size"), BINARY_SIZES.items())
def test_sizes_are_binary_whatever_their_spelling(bare: Probe, text: str, size: int) -> None:
    document = bare.json("alloc", text, code=0 if size < 15 * GIB else 1)
    assert document["requests"][0]["bytes"] == size


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5g", "1gg", "1gib5", "0x10", " 1g", "99999999999999999999", "16777216t"]
)
def test_text_that_is_no_size_is_a_wrong_command_line(bare: Probe, text: str) -> None:
    done = bare.run("alloc", text)
    assert done.returncode == 2
    assert "not a size" in done.stderr or "no such option" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["allocate"],
        ["hold"],
        ["info", "extra"],
        ["verify", "--step", "much"],
        ["alloc", "1g", "--api", "malloc"],
        ["alloc", "1g", "--route", "luck"],
        ["alloc", "1g", "--device", "first"],
        ["hold", "1g", "--seconds", "-3"],
        ["hold", "1g", "--count"],
        ["info", "--verbose"],
    ],
)
def test_wrong_command_line_says_what_is_wrong(bare: Probe, arguments: list[str]) -> None:
    done = bare.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "vgpu-probe" in done.stderr


def test_help_documents_every_exit_code() -> None:
    done = subprocess.run([PROBE, "--help"], capture_output=True, text=True, check=True)
    for code in "0123":
        assert f" {code} " in done.stdout.partition("exit code:")[2].replace(":", " ")


@pytest.mark.parametrize("command", [["info"], ["alloc", "1g"], ["hold", "1g"], ["verify", "--whole-card"]])
def test_machine_without_a_driver_is_told_as_such(command: list[str]) -> None:
    """Exit code 3 and the loader's own words; no crash, no verdict."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CUDA_"))}
    done = subprocess.run([PROBE, *command], check=False, env=env, capture_output=True, text=True)
    assert done.returncode == 3
    assert "no NVIDIA driver here: libcuda.so.1" in done.stderr


def test_device_that_is_not_there(bare: Probe) -> None:
    done = bare.run("alloc", "1g", "--device", "1")
    assert done.returncode == 3
    assert "no device 1: CUDA shows 1" in done.stderr


@pytest.mark.parametrize("build", [BUILD / "vgpu-probe", BUILD / "aarch64" / "vgpu-probe"], ids=["x86_64", "aarch64"])
def test_runs_in_any_image_that_can_carry_the_driver(build: Path) -> None:
    """It needs libc and libdl only, nothing newer than glibc 2.17, and no driver to start."""
    with build.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = elf.get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}  # type: ignore[attr-defined]
        assert needed == {"libc.so.6", "libdl.so.2"}
        versions = next(s for s in elf.iter_sections() if isinstance(s, GNUVerNeedSection))
        names = [entry.name for _, entries in versions.iter_versions() for entry in entries]
    assert max(tuple(map(int, n.removeprefix("GLIBC_").split("."))) for n in names) <= (2, 17)
