"""In a container that was set up: the quota can't be talked away, and without a quota there is no GPU."""

from __future__ import annotations

import time

import pytest

from tests.conftest import BUILD

from .conftest import GIB, MIB, OOM, Ground

pytestmark = pytest.mark.usefixtures("root")

CONTEXT = 102 * MIB
SHARE = {"limit": "4147m", "gpu-memory": "4096", "gpu-fraction": ""}
NOT_PERMITTED = 800


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"CUDA_DEVICE_MEMORY_LIMIT": "100g"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "0"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "4096m"},
        {"CUDA_DISABLE_CONTROL": "true"},
        {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/another-region"},
    ],
    ids=str,
)
def test_no_environment_raises_the_quota(ground: Ground, env: dict[str, str]) -> None:
    worker = ground.contained(SHARE, env=env)
    assert worker.start() == [0, 0, 0], worker.stderr()
    assert worker.alloc(3 * GIB)[0] == 0
    assert worker.alloc(2 * GIB)[0] == OOM
    assert worker.info()[2] == 4147 * MIB
    assert ground.held(worker) == 3 * GIB + CONTEXT
    ledger = ground.ledger(ground.folder / "run" / "region")
    assert (ledger["limit"], ledger["source"]) == (4147 * MIB, 1)


def test_environment_can_lower_the_quota(ground: Ground) -> None:
    worker = ground.contained(SHARE, env={"CUDA_DEVICE_MEMORY_LIMIT": "1g"})
    assert worker.start() == [0, 0, 0]
    assert worker.info()[2] == GIB


def test_a_forged_limit_is_not_believed_and_shown(ground: Ground) -> None:
    worker = ground.contained(SHARE | {"limit": "15360m"})
    assert worker.start() == [0, 0, 0]
    assert worker.info()[2] == 4096 * MIB
    ledger = ground.ledger(ground.folder / "run" / "region")
    assert (ledger["source"], ledger["unbelieved"]) == (2, 15360 * MIB)


def test_a_fraction_is_not_of_what_an_nvml_of_the_tenants_own_says(ground: Ground) -> None:
    path = f"{BUILD / 'tests' / 'boast'}:{ground.card.env['LD_LIBRARY_PATH']}"
    env = {"LD_LIBRARY_PATH": path, "CARD_UUID": ground.card.truth()[0]["uuid"]}
    worker = ground.contained({"gpu-fraction": "0.5"}, env=env)
    assert worker.start() == [0, 0, 0], worker.stderr()
    assert worker.info()[2] <= 7680 * MIB


def test_a_fraction_is_of_what_nvml_says(ground: Ground) -> None:
    worker = ground.contained({"gpu-fraction": "0.5"})
    assert worker.start() == [0, 0, 0]
    assert worker.info()[2] == 7680 * MIB


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ({}, "neither a believable limit nor an annotation"),
        ({"limit": "lots", "gpu-memory": "4096"}, 'holds "lots": not a size'),
        ({"limit": "4147m", "gpu-memory": "-5"}, 'holds "-5": not a number of MiB'),
        ({"gpu-fraction": "1.5"}, 'holds "1.5": not a fraction'),
    ],
    ids=str,
)
def test_without_a_usable_quota_the_gpu_is_refused(ground: Ground, quota: dict[str, str], sentence: str) -> None:
    worker = ground.contained(quota)
    assert worker.call("cuInit", 0) == NOT_PERMITTED
    assert sentence in worker.stderr()
    assert worker.alloc(MIB)[0] != 0
    assert [answer[1:] for answer in worker.nvml()] == [[0, 0, 0]] * 2
    assert ground.held() == 0


def test_a_region_that_is_no_mount_refuses_the_gpu(ground: Ground) -> None:
    worker = ground.contained(SHARE, region=False)
    assert worker.call("cuInit", 0) == NOT_PERMITTED
    assert "isn't a mount" in worker.stderr()


def test_a_foreign_region_refuses_the_gpu(ground: Ground) -> None:
    (ground.folder / "run").mkdir()
    (ground.folder / "run" / "region").write_bytes(b"\0" * 100)
    worker = ground.contained(SHARE)
    assert worker.call("cuInit", 0) == NOT_PERMITTED
    assert "another size" in worker.stderr()


def test_a_full_file_system_refuses_the_gpu(ground: Ground) -> None:
    fill = 'mount -t tmpfs -o size=64k none /run/vgpu && exec "$@"'
    worker = ground.contained(SHARE, wrap=["sh", "-c", fill, "sh"])
    assert worker.call("cuInit", 0) == NOT_PERMITTED
    assert "file system full" in worker.stderr()


def test_the_gpu_comes_with_the_quota(ground: Ground) -> None:
    """KAI's ConfigMap may appear after the container's start."""
    worker = ground.contained({})
    assert worker.call("cuInit", 0) == NOT_PERMITTED
    (ground.folder / "quota" / "gpu-memory").write_text("4096")
    assert worker.start() == [0, 0, 0]
    assert worker.info()[2] == 4096 * MIB


def test_running_processes_take_over_a_changed_quota(ground: Ground) -> None:
    worker = ground.contained({"gpu-memory": "4096"})
    assert worker.start() == [0, 0, 0]
    address = worker.alloc(3 * GIB)[1]
    (ground.folder / "quota" / "gpu-memory").write_text("2048")
    time.sleep(1.1)
    assert worker.alloc(2 * MIB)[0] == OOM
    assert worker.info() == [0, 0, 2048 * MIB]
    assert ground.held(worker) == 3 * GIB + CONTEXT, "nothing is taken away"
    assert worker.call("cuMemFree_v2", address) == 0
    assert worker.alloc(GIB)[0] == 0
    (ground.folder / "quota" / "gpu-memory").write_text("8192")
    time.sleep(1.1)
    assert worker.alloc(6 * GIB)[0] == 0


def test_a_quota_that_becomes_unusable_changes_nothing_for_the_running(ground: Ground) -> None:
    worker = ground.contained({"gpu-memory": "4096"})
    assert worker.start() == [0, 0, 0]
    (ground.folder / "quota" / "gpu-memory").write_text("what")
    time.sleep(1.1)
    assert worker.info()[2] == 4096 * MIB
    assert ground.contained({"gpu-memory": "what"}).call("cuInit", 0) == NOT_PERMITTED
