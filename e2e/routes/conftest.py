"""The route programs inside other systems: an older glibc, another architecture."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from e2e.routes import roots
from tests.symbols.routes import Routes

BUILD = Path(__file__).resolve().parents[2] / "build"


# The Debian releases by their glibc: 2.31 still has dlsym in libdl.so.2, which programs may do without.
RELEASES = {"glibc-2.31": "bullseye", "glibc-2.41": "trixie"}


@pytest.fixture(scope="session", params=[*RELEASES, "aarch64"])
def routes(request: pytest.FixtureRequest) -> Routes:
    """Takes the place of the fixture with which the same tests run on this machine."""
    if request.param == "aarch64":
        root = roots.provide("bullseye", "arm64")
        programs, library = roots.install(root, BUILD / "tests/routes/aarch64", BUILD / "aarch64/libvgpu.so")
        return Routes(programs, library, root, partial(roots.emulated, root))
    root = roots.provide(RELEASES[request.param], "amd64")
    programs, library = roots.install(root, BUILD / "tests/routes/x86_64", BUILD / "libvgpu.so")
    return Routes(programs, library, root, partial(roots.chrooted, root))
