"""The route programs of this machine's architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from .routes import Routes


@pytest.fixture(scope="session")
def routes(build: Path) -> Routes:
    """The route programs with the library as it was built."""
    return Routes(build / "tests" / "routes" / "x86_64", build / "libvgpu.so")
