"""The table in the terminal shows what /evidence tells."""

import json
from typing import Any

import pytest

from monitor import top
from tests.monitor.tree import MIB, T4, T4_BYTES

CONTAINER: dict[str, Any] = {
    "namespace": "team-a", "pod": "train", "pod_uid": "u", "container": "main", "device_uuid": T4,
    "promised_bytes": 4147 * MIB, "promised_by": "kai", "enforced_bytes": 4147 * MIB, "tracked_bytes": 3174 * MIB,
    "real_bytes": 3174 * MIB, "unaccounted_bytes": 0, "peak_bytes": 0, "refusals": 1,
    "refused_largest_bytes": 2048 * MIB,
    "refused_last_unix_seconds": 1.0, "processes": 1, "state": "enforced",
}  # fmt: skip
CARD: dict[str, Any] = {
    "index": "0", "uuid": T4, "name": "Tesla T4", "total_bytes": T4_BYTES, "used_bytes": 7680 * MIB,
    "utilization_ratio": 0.5, "promised_bytes": T4_BYTES,
    "unmanaged_bytes": {"unknown": MIB, "no_share": 0, "unlisted": 0},
}  # fmt: skip


def picture(**changes: Any) -> dict[str, Any]:
    good = {
        "cards": [CARD],
        "containers": [CONTAINER],
        "bad_regions": [],
        "sources": {"nvml": {"up": True, "errors": 0}},
    }
    return good | changes


def test_a_container_is_one_line() -> None:
    lines = top.table(picture()).splitlines()
    line = next(line for line in lines if "train" in line)
    assert line.split() == [
        "team-a/train", "/", "main", "0", "4147", "MiB", "4147", "MiB", "3174", "MiB",
        top.bar(3174 / 4147), "77%", "1", "(largest", "2048", "MiB)", "enforced",
    ]  # fmt: skip
    assert any("Tesla T4" in x and "7680 MiB of 15360 MiB" in x and "promised 100%" in x for x in lines)


def test_columns_stand_under_their_titles() -> None:
    other = CONTAINER | {"pod": "a-much-longer-name", "state": "bypassed", "real_bytes": 14000 * MIB}
    lines = top.table(picture(containers=[CONTAINER, other])).splitlines()
    title, *rows = lines[lines.index("") + 1 :]
    assert {row.index(state) for row, state in zip(rows, ("enforced", "bypassed"), strict=True)} == {
        title.index("STATE")
    }


@pytest.mark.parametrize(
    ("ratio", "drawn"), [(0, "····"), (0.5, "██··"), (1, "████"), (7, "████"), (-1, "····"), (0.125, "▌···")]
)
def test_bars_never_leave_their_cells(ratio: float, drawn: str) -> None:
    assert top.bar(ratio, 4) == drawn


def test_what_nobody_knows_is_a_dash() -> None:
    unknown = dict.fromkeys(CONTAINER, None) | {
        "namespace": "",
        "pod": "u",
        "container": "main",
        "device_uuid": "",
        "processes": 0,
    }
    card = CARD | {"total_bytes": None, "used_bytes": None, "utilization_ratio": None}
    text = top.table(picture(cards=[card], containers=[unknown], sources={"nvml": {"up": False, "errors": 3}}))
    assert "no answer from: nvml" in text
    assert "memory unknown" in text


def test_colour_says_good_or_bad() -> None:
    text = top.table(picture(containers=[CONTAINER, CONTAINER | {"state": "bypassed"}]), colour=True)
    assert text.count(top.GOOD) == 1
    assert text.count(top.BAD) == 1


def test_no_monitor_is_said_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert top.main(["--once", "--url", "http://127.0.0.1:1/evidence"]) == 1
    assert "--url" in capsys.readouterr().err
    assert top.main(["--once", "--url", "file:///etc/passwd"]) == 1


def test_once_and_json_print_and_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(top, "fetch", lambda _: picture())
    assert top.main(["--once"]) == 0
    assert "team-a/train" in capsys.readouterr().out
    assert top.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == picture()
