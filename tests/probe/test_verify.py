"""verify says "kept" exactly when the quota is there to the last block and not a block more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import BUILD
from tests.probe.conftest import MIB, Probe

UnderQuota = Callable[[str], Probe]


@pytest.mark.parametrize("api", ["alloc", "async", "vmm", "managed"])
def test_quota_is_kept_to_the_last_block(under: UnderQuota, api: str) -> None:
    """4147 MiB less the context's 102 MiB is 2022 blocks of 2 MiB and one MiB that nobody can have."""
    probe = under("4147m")
    document = probe.json("verify", "--api", api, "--expect", "4147MiB")
    assert document["verdict"] == "kept"
    assert document["used_before_bytes"] == 102 * MIB
    assert document["taken_bytes"] == document["taken_again_bytes"] == 4044 * MIB
    assert document["refusal_code"] == 2
    assert document["complaints"] == []
    assert probe.card.truth()[0]["used_bytes"] == 0


def test_log_reads_as_a_report(under: UnderQuota) -> None:
    """The verification job's log: what was granted, what was refused and how, and the verdict in the last line."""
    done = under("4147m").run("verify")
    assert done.returncode == 0
    assert "refused  2 MiB more: CUDA_ERROR_OUT_OF_MEMORY (2)\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "verdict  kept: 4147 MiB, to the last block and not one more"
    assert done.stderr == f"Device 0 OOM {4148 * MIB} / {4147 * MIB}\n"


def test_two_containers_of_one_card_both_keep_theirs(under: UnderQuota, bare: Probe) -> None:
    """While one holds its share the other one's is still there, whole."""
    with bare.holding("3GiB"):
        assert under("4147m").json("verify")["verdict"] == "kept"


def test_smaller_quota_than_promised_is_a_broken_promise(under: UnderQuota) -> None:
    document = under("2200m").json("verify", "--expect", "4147m", code=1)
    assert document["verdict"] == "broken"
    assert document["complaints"] == ["promised were 4147 MiB, enforced are 2200 MiB"]


def test_quota_that_a_neighbour_took_is_a_broken_promise(under: UnderQuota, bare: Probe) -> None:
    """A limit alone is no share: what the card hasn't left can't be had, and verify says so."""
    with bare.holding("12GiB"):
        document = under("4147m").json("verify", code=1)
    assert document["verdict"] == "broken"
    assert any("of the quota can be had: the card has no more" in text for text in document["complaints"])


def test_whole_card_is_only_taken_on_request(bare: Probe) -> None:
    """Where nothing is enforced, a verification would starve the card's other users."""
    done = bare.run("verify")
    assert done.returncode == 3
    assert "no quota is in force here" in done.stderr
    assert bare.json("verify", "--whole-card")["verdict"] == "kept"


def test_driver_that_refuses_with_another_code_is_found_out(under: UnderQuota) -> None:
    """A refusal only counts as one when the program can tell it is out of memory."""
    probe = under("4147m")
    subprocess.run(
        [BUILD / "simgpu" / "simgpu", "fault", "--state", probe.card.state, "cuMemAlloc_v2", "3", "999"], check=True
    )
    document = probe.json("verify", code=1)
    assert any("refused with CUDA_ERROR_UNKNOWN (999)" in text for text in document["complaints"])
