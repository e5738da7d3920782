"""What every test may use: the built results and a simulated card of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


@dataclass(frozen=True)
class Card:
    """A simulated GPU: the state file that all its processes share, and the environment that leads to it."""

    state: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment of a program that uses this card without the isolation library."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "LD_", "SIMGPU_"))}
        return clean | {"SIMGPU_STATE": str(self.state), "LD_LIBRARY_PATH": str(BUILD / "simgpu")}

    def truth(self) -> list[dict[str, Any]]:
        """What the card really holds: one object a card, with its processes. Sizes in bytes."""
        done = subprocess.run(
            [BUILD / "simgpu" / "simgpu", "truth", "--state", self.state], check=True, capture_output=True, text=True
        )
        cards: list[dict[str, Any]] = json.loads(done.stdout)["cards"]
        return cards


@pytest.fixture(scope="session")
def build() -> Path:
    """Folder of the built results; `make build` fills it."""
    assert (BUILD / "libvgpu.so").exists(), "run `make build` first"
    return BUILD


@pytest.fixture
def make_card(tmp_path: Path, build: Path) -> Callable[..., Card]:
    """Create simulated cards: `make_card("T4", "T4")` gives one state with two of them."""
    made: list[Path] = []

    def make(*cards: str) -> Card:
        state = tmp_path / f"card-{len(made)}" / "state"
        state.parent.mkdir()
        arguments = [a for card in cards for a in ("--card", card)]
        subprocess.run([build / "simgpu" / "simgpu", "create", "--state", state, *arguments], check=True)
        made.append(state)
        return Card(state)

    return make


@pytest.fixture
def card(make_card: Callable[..., Card]) -> Card:
    """One T4 of 15360 MiB."""
    return make_card("T4")
