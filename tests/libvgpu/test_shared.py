"""Memory that several processes use: charged once, always to somebody who lives."""

from __future__ import annotations

import time

import pytest

from .conftest import GIB, MIB, OOM, Ground, Worker

CONTEXT = 102 * MIB


def agree(ground: Ground, *lookers: Worker) -> int:
    for looker in lookers:
        looker.info()  # looks for the dead
    used = ground.ledger()["used"]
    assert used == ground.held()
    return used


def test_an_import_is_not_charged_twice(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    address = owner.alloc(GIB)[1]
    handle = owner.ipc_get(address)[1]
    result, imported = user.ipc_open(handle)
    assert result == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert user.call("cuIpcCloseMemHandle", imported) == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert owner.call("cuMemFree_v2", address) == 0
    assert agree(ground) == 2 * CONTEXT


def test_when_the_owner_frees_it_the_importer_is_charged(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    address = owner.alloc(GIB)[1]
    imported = user.ipc_open(owner.ipc_get(address)[1])[1]
    assert owner.call("cuMemFree_v2", address) == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert owner.alloc(GIB)[0] == OOM
    assert user.call("cuIpcCloseMemHandle", imported) == 0
    assert agree(ground) == 2 * CONTEXT
    assert owner.alloc(GIB)[0] == 0


def test_export_and_kill_the_owner_five_times_and_the_quota_holds(ground: Ground) -> None:
    user = ground.worker("2200m")
    granted = 0
    for _ in range(5):
        owner = ground.worker("2200m")
        result, address = owner.alloc(768 * MIB)
        if result == 0:
            granted += 1
            assert user.ipc_open(owner.ipc_get(address)[1])[0] == 0
        owner.kill()
        assert agree(ground, user) <= 2200 * MIB
    assert granted == 2
    assert agree(ground, user) == 2 * 768 * MIB + CONTEXT


def test_the_charge_goes_on_from_importer_to_importer(ground: Ground) -> None:
    owner, first, second = (ground.worker("2200m") for _ in range(3))
    handle = owner.ipc_get(owner.alloc(GIB)[1])[1]
    assert first.ipc_open(handle)[0] == 0
    imported = second.ipc_open(handle)[1]
    owner.kill()
    assert agree(ground, second) == GIB + 2 * CONTEXT
    first.kill()
    assert agree(ground, second) == GIB + CONTEXT
    assert second.call("cuIpcCloseMemHandle", imported) == 0
    assert agree(ground, second) == CONTEXT


def test_memory_from_outside_is_charged_to_the_importer_once(ground: Ground) -> None:
    """The exporter runs without the library: as it would in another container."""
    outside, first, second = ground.bare(), ground.worker("2200m"), ground.worker("2200m")
    handle = outside.ipc_get(outside.alloc(GIB)[1])[1]
    assert first.ipc_open(handle)[0] == 0
    assert ground.ledger()["used"] == GIB + 2 * CONTEXT
    assert second.ipc_open(handle)[0] == 0
    assert ground.ledger()["used"] == GIB + 2 * CONTEXT
    big = outside.ipc_get(outside.alloc(2 * GIB)[1])[1]
    assert first.ipc_open(big)[0] == OOM
    assert ground.ledger()["used"] == GIB + 2 * CONTEXT


def test_an_import_dies_with_its_context(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    handle = owner.ipc_get(owner.alloc(GIB)[1])[1]
    assert user.ipc_open(handle)[0] == 0
    owner.kill()
    assert user.call("cuDevicePrimaryCtxReset_v2", 0) == 0
    assert agree(ground, user) == CONTEXT


def test_vmm_memory_is_charged_once_and_handed_on(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    handle = owner.vmm_create(GIB, 0, 1, 1)[1]
    result, fd = owner.vmm_export(handle)
    assert result == 0
    result, imported = user.vmm_import(owner.pid, fd)
    assert result == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    owner.kill()
    assert agree(ground, user) == GIB + CONTEXT
    assert user.call("cuMemRelease", imported) == 0
    assert agree(ground, user) == CONTEXT


def test_exporting_many_times_leaves_nothing_behind(ground: Ground) -> None:
    owner = ground.worker("2200m")
    for _ in range(2000):
        address = owner.alloc(2 * MIB)[1]
        owner.ipc_get(address)
        owner.call("cuMemFree_v2", address)
    assert agree(ground) == CONTEXT


def test_memory_of_a_pool_is_handed_on(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    pool = owner.pool_create(0, 1, 1)[1]
    address = owner.out("cuMemAllocFromPoolAsync", GIB, pool, 0)[1]
    imported = user.pool_import(owner.pid, owner.pool_export(pool)[1])[1]
    result, other = user.pool_import_pointer(imported, owner.pool_export_pointer(address)[1])
    assert result == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    owner.kill()
    assert agree(ground, user) == GIB + CONTEXT
    assert user.call("cuMemFreeAsync", other, 0) == 0
    assert agree(ground, user) == CONTEXT


def test_external_memory_of_a_neighbour_process_is_not_charged_twice(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    fd = owner.vmm_export(owner.vmm_create(GIB, 0, 1, 1)[1])[1]
    result, imported = user.external(owner.pid, fd, GIB)
    assert result == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert user.call("cuDestroyExternalMemory", imported) == 0
    assert agree(ground) == GIB + 2 * CONTEXT


@pytest.mark.parametrize("first", ["owner", "user"])
@pytest.mark.parametrize("kept", [False, True], ids=["all removed", "shares kept"])
@pytest.mark.parametrize("way", ["ipc", "vmm"])
def test_what_is_shared_follows_into_a_region_that_replaced_the_old(
    ground: Ground, way: str, kept: bool, first: str
) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    if way == "ipc":
        memory = owner.alloc(GIB)[1]
        result, imported = user.ipc_open(owner.ipc_get(memory)[1])
    else:
        memory = owner.vmm_create(GIB, 0, 1, 1)[1]
        result, imported = user.vmm_import(owner.pid, owner.vmm_export(memory)[1])
    assert result == 0
    ground.region.unlink()
    if not kept:
        ground.region.with_name("region.shares").unlink()
    time.sleep(1.1)
    for worker in (owner, user) if first == "owner" else (user, owner):
        assert worker.info()[0] == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert owner.call("cuMemFree_v2" if way == "ipc" else "cuMemRelease", memory) == 0
    assert agree(ground) == GIB + 2 * CONTEXT
    assert user.call("cuIpcCloseMemHandle" if way == "ipc" else "cuMemRelease", imported) == 0
    assert agree(ground) == 2 * CONTEXT


def test_a_user_who_followed_is_charged_when_the_owner_dies_before_he_could(ground: Ground) -> None:
    owner, user = ground.worker("2200m"), ground.worker("2200m")
    assert user.ipc_open(owner.ipc_get(owner.alloc(GIB)[1])[1])[0] == 0
    ground.region.unlink()
    time.sleep(1.1)
    user.info()
    owner.kill()
    assert agree(ground, user) == GIB + CONTEXT
