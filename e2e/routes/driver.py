"""The real driver's libraries, from Debian's archive, kept in the user's cache. Without a card they still look up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from e2e.routes.roots import UnavailableError, cache, require

SOURCE = (
    "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    "http://deb.debian.org/debian bookworm non-free\n"
)
PACKAGES = ["libcuda1:amd64", "libnvidia-ml1:amd64"]
INSIDE = "usr/lib/x86_64-linux-gnu/nvidia/current"


def provide() -> Path:
    """Folder of libcuda.so.1 and libnvidia-ml.so.1 as the vendor built them."""
    folder = cache() / "driver"
    if folder.exists():
        return folder / INSIDE
    require("apt-get", "apt")
    require("dpkg-deb", "dpkg")
    partial = folder.with_name("driver.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("lists/partial", "archives/partial"):
        (partial / name).mkdir(parents=True)
    (partial / "sources.list").write_text(SOURCE)
    # Lists of our own: those of the machine stay as they are.
    places = {
        "Dir::Etc::sourcelist": partial / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": partial / "lists",
        "Dir::Cache": partial,
        "APT::Sandbox::User": "root",
    }
    options = [part for name, place in places.items() for part in ("-o", f"{name}={place}")]
    for command in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", *options, "-qq", *command], cwd=partial, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise UnavailableError(f"apt-get {command[0]} of the driver's libraries failed:\n{done.stderr}")
    for package in partial.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, partial], check=True)
    partial.rename(folder)
    return folder / INSIDE
