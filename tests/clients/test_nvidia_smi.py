"""The real nvidia-smi, fetched from the distribution's archive for this run, shows the share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import debian
from tests.clients.conftest import CONTEXT, GIB, QUOTA, Container
from tests.conftest import BUILD
from tests.probe.conftest import MIB, Probe

FOLDER = BUILD / "clients" / "nvidia-smi"
PROGRAM = FOLDER / "usr" / "lib" / "nvidia" / "current" / "nvidia-smi"


@pytest.fixture(scope="session")
def nvidia_smi() -> Path:
    """The program; needs Debian's archive, the only place that offers it alone."""
    if not PROGRAM.exists():
        try:
            debian.unpack(["nvidia-smi:amd64"], FOLDER, "non-free")
        except debian.UnavailableError as missing:
            pytest.skip(f"nvidia-smi: {missing}")
    return PROGRAM


def ask(program: Path, container: Container, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], env=container.env, capture_output=True, text=True, check=True)
    return done.stdout


def test_share_is_the_memory_that_it_shows(container: Container, nvidia_smi: Path) -> None:
    """The line of the quick start, `<uuid>, <share> MiB`, and the picture that people look at."""
    uuid = container.card.truth()[0]["uuid"]
    total = ask(nvidia_smi, container, "--query-gpu=uuid,memory.total", "--format=csv,noheader")
    assert total == f"{uuid}, {QUOTA // MIB} MiB\n"
    assert f"0MiB / {QUOTA // MIB:>5}MiB" in ask(nvidia_smi, container)


def test_use_is_the_container_s(container: Container, nvidia_smi: Path) -> None:
    with Probe(container.card, container.region.parent, "2200m").holding("1GiB"):
        query = "--query-gpu=memory.used,memory.free"
        shown = ask(nvidia_smi, container, query, "--format=csv,noheader,nounits")
    used = (GIB + CONTEXT) // MIB
    assert shown == f"{used}, {QUOTA // MIB - used}\n"


def test_probe_speaks_the_same_format(container: Container, nvidia_smi: Path) -> None:
    """Where there is no nvidia-smi, `vgpu-probe info --csv` stands in for it."""
    shown = ask(nvidia_smi, container, "--query-gpu=uuid,memory.total", "--format=csv,noheader")
    assert Probe(container.card, container.region.parent, "2200m").run("info", "--csv").stdout == shown
