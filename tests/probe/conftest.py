"""The probe on a simulated card, bare or under a quota given by hand."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD, Card

PROBE = BUILD / "vgpu-probe"
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Probe:
    """The program, the card it finds, and the quota it runs under (None: no library at all)."""

    card: Card
    folder: Path
    limit: str | None = None

    @property
    def env(self) -> dict[str, str]:
        if self.limit is None:
            return self.card.env
        return self.card.env | {
            "LD_PRELOAD": str(BUILD / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT": self.limit,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
        }

    @property
    def region(self) -> Path:
        return self.folder / "region"

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROBE, *arguments], check=False, env=self.env, capture_output=True, text=True, timeout=60
        )

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The one JSON document that a command prints; the exit code must be as expected."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    @contextmanager
    def holding(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """A probe that holds memory while the body runs; its document. Ended by SIGTERM, which must go well."""
        with subprocess.Popen(
            [PROBE, "hold", "--json", *arguments], env=self.env, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            try:
                yield json.loads(holder.stdout.readline())
            finally:
                holder.send_signal(signal.SIGTERM)
                code = holder.wait(timeout=30)
        assert code == 0


@pytest.fixture
def bare(card: Card, tmp_path: Path) -> Probe:
    """The probe without the library: it sees the whole card."""
    return Probe(card, tmp_path)


@pytest.fixture
def under(card: Card, tmp_path: Path) -> Callable[[str], Probe]:
    """`under("4147m")` is the probe with that quota, given by hand."""
    return lambda limit: Probe(card, tmp_path, limit)
