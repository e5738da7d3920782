"""Odd things that programs do: none of them takes more than the quota, hangs, or ends a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.conftest import BUILD

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB
PROGRAM = BUILD / "tests" / "hardness"


def odd(ground: Ground, case: str, limit: str | None = "2200m", **more: str) -> subprocess.CompletedProcess[str]:
    """Runs one case of csrc/tests/hardness.c under the library."""
    return subprocess.run(
        [PROGRAM, case], env=ground.env(limit, more), capture_output=True, text=True, timeout=60, check=False
    )


def charged(ground: Ground) -> int:
    """Bytes that the ledger says, at least what the card holds."""
    used = ground.ledger()["used"]
    assert used >= ground.held()
    return used


def fault(ground: Ground, call: str, code: int) -> None:
    """The next `call` of the driver fails with this code."""
    subprocess.run(
        [BUILD / "simgpu" / "simgpu", "fault", "--state", ground.card.state, call, "1", str(code)], check=True
    )


# ---- memory past the quota ----


def test_own_memory_that_comes_back_as_external_memory_stays_charged_when_one_of_the_two_goes(ground: Ground) -> None:
    worker = ground.worker()
    memory = worker.vmm_create(GIB, 0, 1, 1)[1]
    descriptor = worker.vmm_export(memory)[1]
    result, external = worker.external(worker.pid, descriptor, GIB)
    assert result == 0
    assert worker.call("cuDestroyExternalMemory", external) == 0
    assert charged(ground) == CONTEXT + GIB
    assert worker.alloc(1500 * MIB)[0] == OOM
    assert worker.call("cuMemRelease", memory) == 0
    assert charged(ground) == CONTEXT


@pytest.mark.parametrize("attribute", ["cuMemPoolGetAttribute", "cuDeviceGetGraphMemAttribute"])
def test_what_the_driver_cannot_tell_after_a_fault_of_a_kernel_stays_charged(ground: Ground, attribute: str) -> None:
    worker = ground.worker()
    pool = worker.pool_create()[1]
    assert worker.out("cuMemAllocFromPoolAsync", GIB, pool, 0)[0] == 0
    graph = worker.captured(512 * MIB, True)[1]
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    assert worker.call("cuGraphLaunch", executable, 0) == 0
    before = charged(ground)
    fault(ground, attribute, 700)
    worker.call("cuStreamSynchronize", 0)
    assert charged(ground) == before
    fault(ground, attribute, 700)
    assert worker.alloc(GIB)[0] == OOM


def test_who_imported_a_small_request_is_charged_when_its_owner_frees_it(ground: Ground) -> None:
    owner, user = ground.worker(), ground.worker()
    before = charged(ground)
    for _ in range(8):
        addresses = [owner.alloc(1023 * 1024)[1] for _ in range(2)]
        assert user.ipc_open(owner.ipc_get(addresses[0])[1])[0] == 0
        for address in addresses:
            assert owner.call("cuMemFree_v2", address) == 0
    assert charged(ground) == before + 8 * 2 * MIB


def test_part_of_a_box_of_tiles_that_is_mapped_again_leaves_the_rest_charged(ground: Ground) -> None:
    worker = ground.worker()
    array = worker.array(256, 256, 0, 4, 0x40)[1]
    first, second = worker.vmm_create(GIB)[1], worker.vmm_create(2 * MIB)[1]
    assert worker.map_tile(array, 0, first, 4) == 0
    assert worker.map_tile(array, 0, second) == 0
    assert worker.call("cuMemRelease", first) == 0
    assert charged(ground) == CONTEXT + GIB + 2 * MIB
    assert worker.map_tile(array, 0, 0, 4) == 0
    assert charged(ground) == CONTEXT + 2 * MIB


def test_an_allocation_from_elsewhere_is_charged_when_it_is_imported_not_only_when_it_is_mapped(ground: Ground) -> None:
    user = ground.worker()
    results = []
    for _ in range(3):
        elsewhere = ground.bare()
        memory = elsewhere.vmm_create(1500 * MIB, 0, 1, 1)[1]
        results.append(user.vmm_import(elsewhere.pid, elsewhere.vmm_export(memory)[1])[0])
        elsewhere.end()
    assert results == [0, OOM, OOM]
    assert charged(ground) == CONTEXT + 1500 * MIB == ground.held()


def test_memory_from_elsewhere_is_charged_on_the_device_where_it_lies(make_ground: Callable[..., Ground]) -> None:
    ground = make_ground("T4", "T4")
    elsewhere, user = ground.bare(), ground.worker(device=1)
    handle = elsewhere.ipc_get(elsewhere.alloc(GIB)[1])[1]
    assert user.ipc_open(handle)[0] == 0
    elsewhere.end()
    assert [ground.ledger(device=i)["used"] for i in (0, 1)] == [ground.held(card=i) for i in (0, 1)] == [GIB, CONTEXT]


# ---- nobody hangs, nobody dies ----


@pytest.mark.parametrize(
    "case", ["broken-stderr", "full-stderr", "no-long-files", "cancelled-threads", "strange-arrays", "slow-request"]
)
def test_a_program_goes_on(ground: Ground, case: str) -> None:
    done = odd(ground, case)
    assert done.returncode == 0, f"{done.returncode} {done.stdout} {done.stderr}"


def test_a_timer_that_interrupts_every_system_call_stops_no_start(ground: Ground) -> None:
    for _ in range(5):
        assert odd(ground, "timer").returncode == 0
        ground.region.unlink()


@pytest.mark.usefixtures("root")
def test_what_another_user_left_half_made_blocks_nobody(ground: Ground, tmp_path: Path) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    left = [folder / "region.new", folder / "region.new0", folder / "region.shares.new0"]
    for path in left:
        path.touch()
        os.chown(path, 12345, 12345)
    ground.folder = folder
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    worker = ground.worker(device=None, wrap=["setpriv", "--reuid=54321", "--clear-groups"])
    assert worker.start() == [0, 0, 0], worker.stderr()
    assert "counts for itself" not in worker.stderr()
    assert ground.region.stat().st_uid == 54321
    assert all(path.exists() for path in left)


def test_a_region_that_is_removed_again_and_again_is_made_again(ground: Ground) -> None:
    worker = ground.worker()
    for _ in range(6):
        ground.region.unlink()
        sleep(1.2)  # the library looks once a second
        assert worker.alloc(16 * MIB)[0] == 0, worker.stderr()
        assert charged(ground) == ground.held()


def test_a_lock_that_seems_to_be_held_by_a_thread_of_ours_is_waited_for_at_most_a_few_seconds(ground: Ground) -> None:
    """The lock word says so, because somebody scribbled; or a thread ended inside."""
    worker = ground.worker()
    raw = ground.region.read_bytes()
    slots = range(256 + 16 * 256, len(raw), 640)
    index, slot = next((i, at) for i, at in enumerate(slots) if int.from_bytes(raw[at : at + 4], "little") == 1)
    with ground.region.open("r+b") as region:
        region.seek(48)
        region.write((index + 1).to_bytes(4, "little") + raw[slot + 4 : slot + 8])
    began = monotonic()
    assert worker.alloc(16 * MIB)[0] == OOM
    assert monotonic() - began < 20
    with ground.region.open("r+b") as region:
        region.seek(48)
        region.write(bytes(8))
    assert worker.alloc(16 * MIB)[0] == 0
