"""info shows what this process sees: by CUDA, by NVML, with and without a quota."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Card
from tests.probe.conftest import MIB, Probe


def test_whole_card_is_seen_without_the_library(bare: Probe) -> None:
    document = bare.json("info")
    (device,) = document["devices"]
    assert document["library"] is None
    assert device["name"] == "Tesla T4"
    assert device["nvml"]["total_bytes"] == 15360 * MIB
    assert device["cuda"]["used_bytes"] >= 102 * MIB


def test_quota_is_seen_by_every_question(under: Callable[[str], Probe]) -> None:
    """cuDeviceTotalMem, cuMemGetInfo and NVML show one total, one used, one free."""
    document = under("4147m").json("info")
    (device,) = document["devices"]
    expected = {"total_bytes": 4147 * MIB, "used_bytes": 102 * MIB, "free_bytes": 4045 * MIB}
    assert document["library"] is not None
    assert device["total_bytes"] == 4147 * MIB
    assert device["cuda"] == expected
    assert device["nvml"] == expected


def test_csv_is_what_nvidia_smi_prints(under: Callable[[str], Probe]) -> None:
    probe = under("4147m")
    uuid = probe.card.truth()[0]["uuid"]
    assert probe.run("info", "--csv").stdout == f"{uuid}, 4147 MiB\n"
    assert f"\n{uuid}, 4147 MiB\n" in probe.run("info").stdout


def test_device_is_one_device_by_uuid(make_card: Callable[..., Card], tmp_path: Path) -> None:
    """CUDA may count otherwise than NVML does (CUDA_VISIBLE_DEVICES): both answers are of the same card."""
    card = make_card("T4", "A100")
    uuids = [c["uuid"] for c in card.truth()]

    class Reordered(Probe):
        @property
        def env(self) -> dict[str, str]:
            return super().env | {"CUDA_VISIBLE_DEVICES": "1"}

    (device,) = Reordered(card, tmp_path).json("info")["devices"]
    assert device["uuid"] == uuids[1]
    assert device["nvml"]["total_bytes"] == 81920 * MIB


def test_card_whose_nvml_cannot_tell_memory(make_card: Callable[..., Card], tmp_path: Path) -> None:
    """Unified memory: NVML answers NOT_SUPPORTED, CUDA still tells; nvidia-smi's own word is [N/A]."""
    probe = Probe(make_card("GB10"), tmp_path)
    (device,) = probe.json("info")["devices"]
    assert device["nvml"] is None
    assert device["cuda"]["total_bytes"] > 0
    assert probe.run("info", "--csv").stdout.endswith(", [N/A]\n")


def test_mig_device_goes_by_its_own_uuid(make_card: Callable[..., Card], tmp_path: Path) -> None:
    """Not by its parent's: that is another device to NVML."""
    card = make_card("MIG-1g.10gb")
    (device,) = Probe(card, tmp_path).json("info")["devices"]
    assert device["uuid"] == card.truth()[0]["uuid"]
    assert device["nvml"]["total_bytes"] == 9984 * MIB


@pytest.mark.parametrize("name", ["T4", "A100", "GB10", "MIG-1g.10gb"])
def test_context_is_counted_as_the_card_counts_it(make_card: Callable[..., Card], tmp_path: Path, name: str) -> None:
    """Also where NVML tells no total: on a card with unified memory, and of a MIG device."""
    probe = Probe(make_card(name), tmp_path, "4g")
    with probe.holding("1GiB"):
        slots = probe.json("region", str(probe.region))["slots"]
        (context,) = {d["context_bytes"] for slot in slots for d in slot["devices"] if d["context_bytes"]}
        assert context == probe.card.truth()[0]["processes"][0]["context_bytes"]
