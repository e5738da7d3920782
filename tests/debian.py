"""Debian's archive, by the mirror that this machine uses: vendor programs for a test run, never kept in the tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class UnavailableError(RuntimeError):
    """The archive can't be used here; the message says why and what to do."""


def mirror() -> str:
    """Return the address of the archive in this machine's own sources."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("it comes from Debian's archive, and this machine has no apt-get")
    known = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)"], check=True, text=True, capture_output=True
    ).stdout
    for line in known.splitlines():
        site, release = line.split()
        if release == SUITE:
            return site
    raise UnavailableError(f"it comes from Debian {SUITE}, which isn't among this machine's apt sources")


def unpack(packages: list[str], folder: Path, component: str) -> None:
    """Download packages (`name:architecture`) and unpack them into the folder, which appears once it is complete.

    The lists are apt's own but kept apart: those of the machine stay as they are. Raises UnavailableError.
    """
    site = mirror()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("apt/lists/partial", "apt/archives/partial", "root"):
        (partial / name).mkdir(parents=True)
    sources = partial / "apt" / "sources.list"
    sources.write_text(f"deb [arch=amd64 signed-by={KEYRING}] {site} {SUITE} {component}\n")
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": partial / "apt" / "lists",
        "Dir::Cache": partial / "apt",
        "APT::Sandbox::User": "root",
    }
    options = [part for name, place in places.items() for part in ("-o", f"{name}={place}")]
    for command in (["update"], ["download", *packages]):
        done = subprocess.run(
            ["apt-get", *options, "-qq", *command], cwd=partial, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise UnavailableError(f"apt-get {command[0]} of {', '.join(packages)} failed:\n{done.stderr}")
    for package in partial.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, partial / "root"], check=True)
    (partial / "root").rename(folder)
    shutil.rmtree(partial)
