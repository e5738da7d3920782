"""The share holds on the card of this machine, for the probe's own verification."""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from e2e.gpu.card import MIB, Quota
from tests.conftest import BUILD

LIMIT_MIB = 4096


@pytest.fixture
def limited(quota: Callable[[int], Quota]) -> dict[str, str]:
    """The environment of a program that is limited by hand."""
    return quota(LIMIT_MIB).env


def _probe(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BUILD / "vgpu-probe"), *arguments]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture
def holder(limited: dict[str, str]) -> Iterator[None]:
    """Another process of the same container that holds 2 GiB."""
    command = [str(BUILD / "vgpu-probe"), "hold", "2GiB"]
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
    done = _probe(limited, "alloc", "2GiB", "2GiB")
    assert "granted  2 GiB" in done.stdout, done.stdout + done.stderr
    assert "refused  2 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stdout
    refusal = re.search(rf"Device 0 OOM \d+ / {LIMIT_MIB * MIB}", done.stderr)
    assert refusal, done.stderr
    print(refusal[0])


@pytest.mark.usefixtures("holder")
def test_processes_of_a_container_share_one_quota(limited: dict[str, str]) -> None:
    done = _probe(limited, "alloc", "2GiB")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stdout
