"""Many processes, and what becomes of them: one quota, nothing left behind, nobody blocked."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .conftest import GIB, MIB, OOM, Ground

CONTEXT = 102 * MIB


def test_processes_share_one_quota(ground: Ground) -> None:
    first, second = ground.worker("2300m"), ground.worker("2300m")
    assert first.alloc(GIB)[0] == 0
    assert second.alloc(GIB)[0] == 0
    assert first.alloc(100 * MIB)[0] == OOM
    assert ground.held() == 2 * GIB + 2 * CONTEXT == ground.ledger()["used"]


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_holder_gives_back_at_once(ground: Ground, way: signal.Signals) -> None:
    waiting = ground.worker("2200m")
    for _ in range(3):
        holder = ground.worker("2200m")
        assert holder.alloc(GIB + 900 * MIB)[0] == 0
        assert waiting.alloc(GIB)[0] == OOM
        os.kill(holder.pid, way)
        holder.process.wait()
        result, address = waiting.alloc(2 * GIB)
        assert result == 0
        assert waiting.call("cuMemFree_v2", address) == 0
    assert ground.held() == CONTEXT


def test_a_zombie_holds_nothing(ground: Ground) -> None:
    waiting, holder = ground.worker("2200m"), ground.worker("2200m")
    assert holder.alloc(GIB + 900 * MIB)[0] == 0
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert waiting.alloc(2 * GIB)[0] == 0


def test_a_forked_child_is_told_so_by_the_driver_and_takes_nothing(ground: Ground) -> None:
    worker = ground.worker("2200m")
    worker.alloc(GIB)
    assert worker.fork_and("alloc", MIB)[0] == 3
    assert worker.fork_and("start")[0] != 800
    assert ground.ledger()["used"] == GIB + CONTEXT
    assert worker.alloc(GIB)[0] == 0


def test_a_child_forked_before_cuinit_has_a_quota_of_its_parents_region(ground: Ground) -> None:
    worker = ground.worker("2200m", device=None)
    assert worker.fork_and("start") == [0, 0, 0]
    assert worker.start() == [0, 0, 0]
    worker.info()  # looks for the dead
    assert ground.ledger()["used"] == CONTEXT == ground.held()


def test_a_daemon_that_closes_its_descriptors_stays_alive_for_others(ground: Ground) -> None:
    daemon, other = ground.worker("2200m"), ground.worker("2200m")
    assert daemon.alloc(GIB + 512 * MIB)[0] == 0
    daemon.close_all()
    assert other.alloc(GIB)[0] == OOM
    time.sleep(1.2)
    assert other.alloc(GIB)[0] == OOM
    assert daemon.alloc(GIB)[0] == OOM
    assert ground.held() == GIB + 512 * MIB + 2 * CONTEXT == ground.ledger()["used"]


def test_a_process_of_another_pid_namespace_is_judged_rightly(ground: Ground, root: None) -> None:
    """Both have pid 1: numbers tell nothing."""
    wrap = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder, other = ground.worker("2200m", wrap=wrap), ground.worker("2200m", wrap=wrap)
    assert holder.alloc(GIB + 512 * MIB)[0] == 0
    assert other.alloc(GIB)[0] == OOM
    holder.kill()
    deadline = time.monotonic() + 5
    while (result := other.alloc(GIB)[0]) == OOM and time.monotonic() < deadline:
        time.sleep(0.01)
    assert result == 0


def test_a_stopped_process_keeps_what_it_holds(ground: Ground) -> None:
    holder, other = ground.worker("2200m"), ground.worker("2200m")
    assert holder.alloc(GIB + 512 * MIB)[0] == 0
    os.kill(holder.pid, signal.SIGSTOP)
    assert other.alloc(GIB)[0] == OOM
    os.kill(holder.pid, signal.SIGCONT)


def test_a_removed_region_is_noticed_within_a_second_and_bytes_enter_the_new_one(ground: Ground) -> None:
    first, second = ground.worker("2300m"), ground.worker("2300m")
    assert first.alloc(GIB)[0] == 0
    assert second.alloc(512 * MIB)[0] == 0
    ground.region.unlink()
    time.sleep(1.1)
    assert second.info()[0] == 0
    assert first.info()[0] == 0
    assert ground.ledger()["used"] == GIB + 512 * MIB + 2 * CONTEXT == ground.held()
    assert first.alloc(GIB)[0] == OOM
    assert second.alloc(256 * MIB)[0] == 0


def test_many_processes_start_together(ground: Ground) -> None:
    workers = [ground.worker("8g", device=None) for _ in range(16)]
    assert [w.start() for w in workers] == [[0, 0, 0]] * 16
    assert ground.ledger()["used"] == 16 * CONTEXT == ground.held()


def test_spawned_programs_take_nothing_and_leave_the_parent_alone(ground: Ground) -> None:
    worker = ground.worker("2200m")
    worker.alloc(GIB)
    for _ in range(5):
        assert worker.spawn("/bin/true") == 0
    assert worker.alloc(GIB)[0] == 0
    assert ground.ledger()["used"] == 2 * GIB + CONTEXT == ground.held()


def test_exec_gives_everything_back(ground: Ground) -> None:
    worker, other = ground.worker("2200m"), ground.worker("2200m")
    worker.alloc(GIB + 512 * MIB)
    assert other.alloc(GIB)[0] == OOM
    assert worker.process.stdin is not None
    worker.process.stdin.write('["become", "/bin/cat"]\n')
    worker.process.stdin.flush()
    deadline = time.monotonic() + 5
    while (result := other.alloc(GIB)[0]) == OOM and time.monotonic() < deadline:
        time.sleep(0.01)
    assert result == 0
