"""The real nvidia-smi, fetched from the distribution's archive for this run, shows the share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import CONTEXT, GIB, QUOTA, Container
from tests.conftest import BUILD
from tests.probe.conftest import MIB, Probe

FOLDER = BUILD / "clients" / "nvidia-smi"
PROGRAM = FOLDER / "root" / "usr" / "lib" / "nvidia" / "current" / "nvidia-smi"
SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm non-free\n"
)


def fetch() -> None:
    """Download and unpack the package with apt's own lists kept apart, so that the machine's stay as they are."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    sources = FOLDER / "sources.list"
    sources.write_text(SOURCE)
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": FOLDER / "lists",
        "Dir::Cache": FOLDER / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [part for name, place in places.items() for part in ("-o", f"{name}={place}")]
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True, cwd=FOLDER)
    subprocess.run(["apt-get", *options, "-qq", "download", "nvidia-smi:amd64"], check=True, cwd=FOLDER)
    (package,) = FOLDER.glob("nvidia-smi_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, FOLDER / "root"], check=True)


@pytest.fixture(scope="session")
def nvidia_smi() -> Path:
    """The program; needs Debian's archive, the only place that offers it alone."""
    if not PROGRAM.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            pytest.skip("nvidia-smi comes from Debian's archive, and this machine has no apt-get")
        fetch()
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
