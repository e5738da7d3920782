"""alloc and hold take what they say, by each of the driver's ways, and give it back."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.probe.conftest import GIB, MIB, PROBE, Probe

APIS = ["alloc", "async", "vmm", "managed"]
ROUTES = ["getproc", "dlsym", "default"]
UnderQuota = Callable[[str], Probe]


def test_quick_start_grants_three_gib_and_refuses_two_more(under: UnderQuota) -> None:
    """The reference case: 4147 MiB, a context of 102 MiB, 3 GiB granted, then 2 GiB refused with the library's line."""
    done = under("4147m").run("alloc", "3GiB", "2GiB")
    assert done.returncode == 1
    assert "granted  3 GiB\nrefused  2 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)\n" in done.stdout
    assert "Device 0 OOM 5475663872 / 4348444672\n" in done.stderr


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("api", APIS)
def test_no_way_leads_past_the_quota(under: UnderQuota, api: str, route: str) -> None:
    """Eight times 1 GiB against 2200 MiB: two are granted, by whatever function and however it is found."""
    document = under("2200m").json("alloc", "1GiB", "--count", "8", "--api", api, "--route", route, code=1)
    assert [request["granted"] for request in document["requests"]] == [True] * 2 + [False] * 6
    assert {request["code"] for request in document["requests"][2:]} == {2}
    assert document["returned"]


@pytest.mark.parametrize("api", ["alloc", "async", "vmm"])
def test_held_memory_is_really_held(bare: Probe, api: str) -> None:
    """The card's own truth says so, and that all is back after SIGTERM."""
    with bare.holding("1GiB", "512MiB", "--api", api) as document:
        assert document["held"]
        (process,) = bare.card.truth()[0]["processes"]
        assert process["pid"] == document["pid"]
        assert process["data_bytes"] == 1536 * MIB
    assert bare.card.truth()[0]["used_bytes"] == 0


def test_hold_ends_by_itself_after_its_seconds(bare: Probe) -> None:
    done = bare.run("hold", "1GiB", "--seconds", "0.1")
    assert done.returncode == 0
    assert done.stdout.endswith("released\n")


def test_hold_says_that_it_holds_before_it_waits(bare: Probe) -> None:
    """A script can wait for the line: output isn't kept back although stdout is a pipe."""
    with subprocess.Popen([PROBE, "hold", "1GiB"], env=bare.env, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        lines = [holder.stdout.readline() for _ in range(3)]
        holder.send_signal(signal.SIGINT)
        assert holder.wait(timeout=30) == 0
    assert lines[1:] == ["granted  1 GiB\n", f"held     1 GiB by pid {holder.pid}\n"]


def test_hold_gives_back_what_was_granted_when_one_request_is_refused(under: UnderQuota) -> None:
    probe = under("2200m")
    document = probe.json("hold", "1GiB", "--count", "3", code=1)
    assert not document["held"]
    assert document["granted_bytes"] == 2 * GIB
    assert probe.card.truth()[0]["used_bytes"] == 0


def test_busy_holder_launches_kernels(bare: Probe) -> None:
    with bare.holding("1MiB", "--busy"):
        for _ in range(200):
            done = bare.run("info", "--csv")  # something to do meanwhile; the launches come on their own
            assert done.returncode == 0
            (process,) = bare.card.truth()[0]["processes"]
            if process["module_bytes"] > 0:
                break
        assert process["module_bytes"] > 0
