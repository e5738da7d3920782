"""The exporter takes nothing from the reader that isn't what it expects."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from monitor import messages, reader
from monitor.messages import Holding, Ledger, RegionState, Scan
from monitor.pipe import ReaderPipe
from tests.monitor.tree import Node, WrittenDevice

LEDGER = Ledger("GPU-1", 1, -1, "kai", 2, 3, 4, 5, 6, 7, 8, 9, 10)
SCAN = Scan(
    frozenset({"u", "v"}),
    (RegionState("u", "main", "", 2, (LEDGER,)), RegionState("v", "main", "magic", 0, ())),
    {"u": {"limit": "1m"}},
    {7: Holding(7, "u", "c", "")},
    {"proc": (2, "denied")},
)


def test_a_scan_comes_over_as_it_was() -> None:
    assert messages.decode_scan(messages.encode_scan(5, SCAN)) == (5, SCAN)
    assert messages.decode_request(messages.encode_request(5, [1, 2])) == (5, [1, 2])


def line(**changes: Any) -> bytes:
    data = json.loads(messages.encode_scan(5, SCAN)) | changes
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "5"},
        {"id": True},
        {"regions": {}},
        {"regions": [[]]},
        {"regions": [["u", "main", "", "2", []]]},
        {"regions": [["u", "main", "", 2, [[1] * 13]]]},
        {"regions": [["u", "main", "", 2, [["x", 1.5, *[1] * 11]]]]},
        {"holders": [[7, "u"]]},
        {"quotas": {"u": {"limit": 5}}},
        {"errors": {"proc": [1]}},
        {"pods": [None]},
    ],
)
def test_a_field_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|type|fields|unpack"):
        messages.decode_scan(line(**changes))


@pytest.mark.parametrize("text", [b"", b"[]\n", b"{}\n", b"nonsense\n", b"\xff\xfe\n"])
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting|decode"):
        messages.decode_scan(text)


def test_an_answer_to_an_older_question_is_skipped() -> None:
    empty = SCAN._replace(regions=())
    answers = io.BytesIO(messages.encode_scan(0, empty) + messages.encode_scan(1, SCAN))
    assert ReaderPipe(io.BytesIO(), answers).scan([]) == SCAN


@pytest.mark.parametrize("text", [b"", b'{"id": 1'])
def test_a_reader_that_ends_is_noticed(text: bytes) -> None:
    with pytest.raises(EOFError):
        ReaderPipe(io.BytesIO(), io.BytesIO(text)).scan([])


def test_an_answer_that_would_be_too_long_is_not_sent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(30):
        node.region(node.pod(i, f"p{i}"), [WrittenDevice()])
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 3000)
    out = io.BytesIO()
    reader.serve(io.BytesIO(messages.encode_request(1, [])), out, node.root, Path("/proc"), False)
    _, scan = messages.decode_scan(out.getvalue())
    assert scan.errors == {"regions": (1, "the answer would be too long")}


def test_the_reader_finds_itself_in_no_pod(node: Node) -> None:
    scan = reader.scan(node.root, Path("/proc"), [os.getpid(), 2**22 + 1], by_mount=True)
    assert (scan.holdings, scan.errors) == ({}, {})


def test_a_proc_that_is_none_is_an_error(node: Node, tmp_path: Path) -> None:
    assert "proc" in reader.scan(node.root, tmp_path, [], by_mount=False).errors


def test_control_groups_that_cant_be_read_are_an_error_and_spare_the_other_processes(
    node: Node, tmp_path: Path
) -> None:
    """Version 1 and 2 come by the same file of /proc, so they fail as that source does."""
    uid, container = "0f1e2d3c-1111-4222-8333-444455556666", "ab" * 32
    groups = {
        "1": f"4:memory:/kubepods/burstable/pod{uid}/{container}\n",
        "2": f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{container}.scope\n",
    }
    for pid, text in groups.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(text)
    (tmp_path / "3" / "cgroup").mkdir(parents=True)  # whatever the reason, it can't be read
    (tmp_path / "self").symlink_to("1")
    scan = reader.scan(node.root, tmp_path, [1, 2, 3], by_mount=False)
    assert {pid: (h.pod_uid, h.container_id) for pid, h in scan.holdings.items()} == dict.fromkeys(
        (1, 2), (uid, container)
    )
    assert scan.errors == {"proc": (1, f"{tmp_path}/3: Is a directory")}
