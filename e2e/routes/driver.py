"""The real driver's libraries, from Debian's archive, kept in the user's cache. Without a card they still look up."""

from __future__ import annotations

from pathlib import Path

from e2e.routes.roots import cache
from tests import debian

PACKAGES = ["libcuda1:amd64", "libnvidia-ml1:amd64"]
INSIDE = "usr/lib/x86_64-linux-gnu/nvidia/current"


def provide() -> Path:
    """Folder of libcuda.so.1 and libnvidia-ml.so.1 as the vendor built them."""
    folder = cache() / "driver"
    if not folder.exists():
        debian.unpack(PACKAGES, folder, "non-free")
    return folder / INSIDE
