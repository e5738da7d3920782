"""The share holds on the card of this machine, for the probe and for PyTorch where it is installed."""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build"
LIMIT_MIB = 2048
MIB = 1 << 20
# Takes 1 GiB, then 8 GiB more, and says what became of it and how large the card is said to be.
TORCH = """
import torch
total = torch.cuda.get_device_properties(0).total_memory
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    print("granted", total)
except torch.cuda.OutOfMemoryError:
    print("refused", total)
"""


@pytest.fixture
def limited(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that is limited by hand; the test is skipped where no card can be used."""
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError as error:
        pytest.skip(f"no NVIDIA driver on this machine: {error}")
    if code:
        pytest.skip(f"no card can be used on this machine: cuInit gives {code}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_DEVICE", "LD_PRELOAD"))}
    return kept | {
        "LD_PRELOAD": str(BUILD / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region"),
    }


def _probe(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BUILD / "vgpu-probe"), *arguments]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture
def holder(limited: dict[str, str]) -> Iterator[None]:
    """Another process of the same container that holds 1 GiB."""
    command = [str(BUILD / "vgpu-probe"), "hold", "1GiB"]
    with subprocess.Popen(command, env=limited, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("held"):
                break
        yield
        process.terminate()


def test_quota_is_granted_to_the_last_block_and_not_one_more(limited: dict[str, str]) -> None:
    done = _probe(limited, "verify", "--expect", f"{LIMIT_MIB}MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    print(next(line for line in done.stdout.splitlines() if line.startswith("verdict")))


def test_what_is_beyond_is_refused_with_cudas_out_of_memory(limited: dict[str, str]) -> None:
    done = _probe(limited, "alloc", "1GiB", "2GiB")
    assert "granted  1 GiB" in done.stdout, done.stdout + done.stderr
    assert "refused  2 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stdout
    refusal = re.search(rf"Device 0 OOM \d+ / {LIMIT_MIB * MIB}", done.stderr)
    assert refusal, done.stderr
    print(refusal[0])


@pytest.mark.usefixtures("holder")
def test_processes_of_a_container_share_one_quota(limited: dict[str, str]) -> None:
    done = _probe(limited, "alloc", "1GiB")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stdout


def test_pytorch_sees_and_gets_its_share(limited: dict[str, str]) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch isn't installed here")
    done = subprocess.run(
        [sys.executable, "-c", TORCH], env=limited, check=False, capture_output=True, text=True, timeout=300
    )
    word, total = done.stdout.split()
    assert word == "refused", done.stderr
    assert int(total) == LIMIT_MIB * MIB
    print(f"PyTorch is told {int(total) // MIB} MiB, gets 1 GiB and is refused 8 GiB more")
