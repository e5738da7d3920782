"""How the route tests run their small programs: with and without the library, here or inside another root folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Launch = Callable[[list[str], dict[str, str]], tuple[list[str], dict[str, str]]]
"""Command and environment of a program to the command and environment by which it is started."""


def directly(command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """On this machine, as it is."""
    return command, environment


@dataclass(frozen=True)
class Routes:
    """The programs of the route tests and the library they are run with, as the programs see them."""

    folder: Path
    library: Path
    root: Path = Path("/")
    """What the programs see as /, for files that a test makes."""
    launch: Launch = directly

    def run(
        self,
        program: str | Path,
        *arguments: str | Path,
        preload: tuple[str | Path, ...] = (),
        environment: Mapping[str, str] | None = None,
        text: str = "",
    ) -> str:
        """What a program prints; a failure or a word on stderr (the dynamic linker's complaints) is an error."""
        variables = {"LD_LIBRARY_PATH": str(self.folder), "PATH": os.defpath} | dict(environment or {})
        if preload:
            variables["LD_PRELOAD"] = ":".join(map(str, preload))
        command, outer = self.launch([str(self.folder / program), *map(str, arguments)], variables)
        done = subprocess.run(command, env=outer, input=text, text=True, capture_output=True, timeout=120, check=False)
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

    def copy(self, file: Path, name: str) -> Path:
        """Another file with the same contents, beside the first."""
        inside = file.with_name(name)
        outside = self.root / inside.relative_to("/")
        outside.write_bytes((self.root / file.relative_to("/")).read_bytes())
        return inside
