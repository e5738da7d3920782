"""What the tests on a real card ask for."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from e2e.gpu.card import Quota


@pytest.fixture(scope="session", autouse=True)
def card() -> Iterator[None]:
    """Skips everything where no card can be used."""
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError as error:
        pytest.skip(f"no NVIDIA driver on this machine: {error}")
    if code:
        pytest.skip(f"no card can be used on this machine: cuInit gives {code}")
    pynvml.nvmlInit()
    yield
    pynvml.nvmlShutdown()


@pytest.fixture
def quota(tmp_path: Path) -> Iterator[Callable[[int], Quota]]:
    """`quota(MiB)` makes one."""
    made: list[Quota] = []

    def make(limit_mib: int) -> Quota:
        made.append(Quota(tmp_path, limit_mib))
        return made[-1]

    yield make
    for one in made:
        for worker in one.workers:
            worker.end()
