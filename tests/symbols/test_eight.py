"""The quota holds whichever way a program comes by the function that it allocates with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Card

GIB = 1 << 30
CONTEXT_OF_A_T4 = 102 << 20
WAYS = ["direct", "dlsym", "next", "get", "async", "vmm", "dlmopen"]


def _eight(build: Path, card: Card, way: str, environment: dict[str, str]) -> tuple[str, int]:
    """What the program says, and what the card holds for it while it still runs."""
    with subprocess.Popen(
        [build / "tests" / "route_eight", way],
        env=card.env | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        said = program.stdout.readline().strip()
        held = card.truth()[0]["used_bytes"]
        program.stdin.close()
        assert program.wait(timeout=60) == 0
    return said, held


@pytest.mark.parametrize("way", WAYS)
def test_of_eight_gibibytes_exactly_two_fit_into_2200_mebibytes(
    build: Path, card: Card, tmp_path: Path, way: str
) -> None:
    """Two and the context fit; a third would not."""
    said, held = _eight(
        build,
        card,
        way,
        {
            "LD_PRELOAD": str(build / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT": "2200m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region"),
        },
    )
    assert said == "2 of 8"
    assert held == 2 * GIB + CONTEXT_OF_A_T4


@pytest.mark.parametrize("way", WAYS)
def test_all_eight_fit_without_the_library(build: Path, card: Card, way: str) -> None:
    said, held = _eight(build, card, way, {})
    assert said == "8 of 8"
    assert held == 8 * GIB + CONTEXT_OF_A_T4


def test_drivers_of_two_namespaces_share_one_quota(build: Path, card: Card, tmp_path: Path) -> None:
    """Each has a context of its own and a copy of the library; what they take is taken from the same limit."""
    said, held = _eight(
        build,
        card,
        "both",
        {
            "LD_PRELOAD": str(build / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT": "2400m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region"),
        },
    )
    assert said == "2 of 8"
    assert held == 2 * GIB + 2 * CONTEXT_OF_A_T4
