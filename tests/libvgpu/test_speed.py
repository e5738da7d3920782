"""What the library adds to a call, in instructions: the same on every machine and however busy it is.

Times are `make bench`'s; this guards them against growing unnoticed. Limits are a quarter above what was measured.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import Ground

COUNT = 2000


@pytest.fixture
def callgrind() -> str:
    found = shutil.which("valgrind")
    if found is None:
        pytest.skip("counting instructions needs valgrind: install it to have this test")
    return found


def instructions(callgrind: str, build: Path, env: dict[str, str], name: str) -> float:
    """Instructions of one call, by callgrind, which counts only inside the function of that name."""
    command = [
        callgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={name}",
        str(build / "tests" / "bench-calls"), name, str(COUNT),
    ]  # fmt: skip
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected, done.stderr
    return int(collected[1]) / (COUNT + COUNT / 10 + 1)


@pytest.mark.parametrize(
    ("name", "most"), [("pair", 650), ("info", 310), ("launch", 70)], ids=["alloc+free", "cuMemGetInfo", "launch"]
)
def test_the_library_adds_few_instructions(ground: Ground, build: Path, callgrind: str, name: str, most: int) -> None:
    with_library = instructions(callgrind, build, ground.env("8g", {}), name)
    assert with_library - instructions(callgrind, build, ground.card.env, name) <= most


def test_a_refusal_is_short_and_never_asks_the_driver(ground: Ground, build: Path, callgrind: str) -> None:
    assert instructions(callgrind, build, ground.env("8g", {}), "refuse") <= 450
