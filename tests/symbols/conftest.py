"""How the route tests run their small programs: with and without the library, on the tests' own small driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

Run = Callable[..., str]


@dataclass(frozen=True)
class Routes:
    """The programs of the route tests, and the library they are run with."""

    folder: Path
    library: Path

    def run(
        self,
        *command: str | Path,
        preload: tuple[str | Path, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """What a program of the folder prints; anything on stderr (the dynamic linker's complaints) is an error."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "LD_", "ROUTE_"))}
        clean |= {"LD_LIBRARY_PATH": str(self.folder)} | dict(environment or {})
        if preload:
            clean["LD_PRELOAD"] = ":".join(map(str, preload))
        program, *arguments = command
        done = subprocess.run(
            [self.folder / program, *arguments], env=clean, text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    def where(self, way: str, symbol: str, *file: str | Path, limit: str | None = "1g", bare: bool = False) -> str:
        """Name of the object in which route_where finds `symbol`, or its "absent" line with paths cut off."""
        said = self.run(
            "route_where",
            way,
            symbol,
            *file,
            preload=() if bare else (self.library,),
            environment={"CUDA_DEVICE_MEMORY_LIMIT": limit} if limit else None,
        ).strip()
        if not said.startswith("absent: "):
            return Path(said).name
        where, colon, message = said.removeprefix("absent: ").partition(": ")
        return f"absent: {Path(where).name}{colon}{message}"


@pytest.fixture(scope="session")
def routes(build: Path) -> Routes:
    """The route programs for this machine's architecture."""
    return Routes(build / "tests" / "routes" / "x86_64", build / "libvgpu.so")
