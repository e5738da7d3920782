"""What is charged is never less than what the card holds, however memory comes and goes; judged by the card's truth."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import MIB, Ground

CONTEXT = 102 * MIB


def pauses(ground: Ground, build: Path, way: str, seed: int, rounds: int) -> Iterator[tuple[str, int, int]]:
    """At each pause of the program: what it says, bytes charged, bytes held."""
    command = [str(build / "tests" / "account-churn"), way, str(seed), str(rounds)]
    env = ground.env("2200m", {})
    with (
        (ground.folder / "stderr-churn").open("w") as stderr,
        subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        for line in process.stdout:
            yield line.strip(), ground.ledger()["used"], ground.held()
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0, (ground.folder / "stderr-churn").read_text()[-500:]


@pytest.mark.parametrize("seed", [1, 2])
def test_modules_are_charged_what_they_take_while_other_threads_allocate(
    ground: Ground, build: Path, seed: int
) -> None:
    seen = list(pauses(ground, build, "modules", seed, 4))
    assert [charged for _, charged, _ in seen] == [held for _, _, held in seen]
    assert seen[-1] == ("empty", CONTEXT, CONTEXT)
    assert any(held > CONTEXT for _, _, held in seen)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_small_linear_memory_is_charged_the_blocks_that_the_card_holds(ground: Ground, build: Path, seed: int) -> None:
    seen = list(pauses(ground, build, "linear", seed, 6))
    assert [charged for _, charged, _ in seen] == [held for _, _, held in seen]
    assert seen[-1] == ("empty", CONTEXT, CONTEXT)


@pytest.mark.parametrize("way", ["arrays", "mixed"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_small_arrays_are_never_charged_less_than_they_hold(ground: Ground, build: Path, way: str, seed: int) -> None:
    seen = list(pauses(ground, build, way, seed, 6))
    assert [step for step in seen if step[1] < step[2]] == []
    assert seen[-1] == ("empty", CONTEXT, CONTEXT)


def test_pinned_blocks_stay_charged_round_after_round(ground: Ground) -> None:
    """One tiny array keeps a block that two large ones shared with it, so each round leaves more blocks with holes."""
    worker = ground.worker("402m")
    for _ in range(4):
        large: list[int] = []
        granted = True
        while granted:
            answers = [worker.array(width) for width in (64, 61440, 61440)]
            large += [array for result, array in answers[1:] if result == 0]
            granted = all(result == 0 for result, _ in answers)
            assert ground.held() <= ground.ledger()["used"] <= 402 * MIB
        for array in large:
            assert worker.call("cuArrayDestroy", array) == 0
        assert ground.held() <= ground.ledger()["used"]


def test_arrays_of_one_size_share_their_blocks(ground: Ground) -> None:
    """Never less doesn't mean much more: 320 arrays of 64 KiB fill 10 blocks."""
    worker = ground.worker("2200m")
    arrays = [worker.array(64, 64)[1] for _ in range(320)]
    assert ground.ledger()["used"] == ground.held() == CONTEXT + 20 * MIB
    for array in arrays:
        assert worker.call("cuArrayDestroy", array) == 0
    assert ground.ledger()["used"] == CONTEXT


def test_a_mig_device_alone_in_its_container_is_device_0(make_ground: Callable[..., Ground]) -> None:
    """NVML counts the card that it is a part of, which isn't the container's."""
    ground = make_ground("MIG-1g.10gb")
    worker = ground.worker(None, env={"CUDA_DEVICE_MEMORY_LIMIT_0": "1g"})
    assert worker.info()[2] == 1024 * MIB
    assert worker.nvml()[0][1] == 1024 * MIB
    assert ground.ledger()["limit"] == 1024 * MIB
    assert ground.ledger(device=1)["physical"] == 0
    worker.alloc(2048 * MIB)
    assert "Device 0 OOM" in worker.stderr()


def test_too_few_descriptors_are_named_as_the_reason(ground: Ground, build: Path) -> None:
    """One more than the standard ones: opening the region fails, its path is as it should be."""
    done = subprocess.run(
        [build / "vgpu-probe", "info"],
        env=ground.env("2g", {}),
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)),
    )
    assert "can't open the region's file (Too many open files)" in done.stderr
