"""What reader and exporter say to each other: one JSON object a line, of a bounded length, over a pipe.

    exporter: {"id": 7, "pids": [4711, …]}
    reader:   {"id": 7, "pods": […], "regions": [[…]], "quotas": {…}, "holders": [[…]], "errors": {…}}

The reader handles tenants' bytes, so the exporter takes nothing from it that isn't of the type it expects.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

MAX_LINE_BYTES = 16 << 20
MAX_PIDS = 16384


class Ledger(NamedTuple):
    """One device of one container as its region has it. Sizes in bytes; `limit` is -1 where none is enforced."""

    uuid: str
    physical: int
    limit: int
    source: str
    unbelieved: int
    refusals: int
    refused_largest: int
    refused_last_ns: int
    context: int
    module: int
    buffer: int
    peak: int
    launches: int

    @property
    def tracked(self) -> int:
        """All bytes that the living processes are charged for."""
        return self.context + self.module + self.buffer


class RegionState(NamedTuple):
    """A container's region: what is in it or, in one word, what is wrong with it (`absent` where there is none)."""

    pod_uid: str
    container: str
    problem: str
    processes: int
    ledgers: tuple[Ledger, ...]


class Holding(NamedTuple):
    """The container that a process is in: by the runtime's id or by name, one of them empty."""

    pid: int
    pod_uid: str
    container_id: str
    container: str


RowT = TypeVar("RowT", Ledger, Holding)


class Scan(NamedTuple):
    """All that the reader found in one look. `errors` says per source (regions, proc) how often it failed and how."""

    pods: frozenset[str]
    regions: tuple[RegionState, ...]
    quotas: Mapping[str, Mapping[str, str]]
    holdings: Mapping[int, Holding]
    errors: Mapping[str, tuple[int, str]]


def encode_request(number: int, pids: list[int]) -> bytes:
    """Build the line that asks for a look."""
    return json.dumps({"id": number, "pids": pids[:MAX_PIDS]}).encode() + b"\n"


def decode_request(line: bytes) -> tuple[int, list[int]]:
    """Read a request. Raises ValueError."""
    data = _object(json.loads(line))
    return _whole(data.get("id")), [_whole(pid) for pid in _list(data.get("pids"))]


def encode_scan(number: int, scan: Scan) -> bytes:
    """Build the line that answers request `number`."""
    data = {
        "id": number,
        "pods": sorted(scan.pods),
        "regions": scan.regions,
        "quotas": scan.quotas,
        "holders": list(scan.holdings.values()),
        "errors": scan.errors,
    }
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def decode_scan(line: bytes) -> tuple[int, Scan]:
    """Read an answer: the number of its request and what was found. Raises ValueError."""
    data = _object(json.loads(line))
    regions = tuple(_region(row) for row in _list(data.get("regions")))
    holdings = [_row(Holding, row) for row in _list(data.get("holders"))]
    quotas = {
        uid: {name: _text(text) for name, text in _object(texts).items()}
        for uid, texts in _object(data.get("quotas")).items()
    }
    errors = {
        source: (_whole(count), _text(message))
        for source, (count, message) in ((s, _pair(e)) for s, e in _object(data.get("errors")).items())
    }
    pods = frozenset(_text(uid) for uid in _list(data.get("pods")))
    return _whole(data.get("id")), Scan(pods, regions, quotas, {h.pid: h for h in holdings}, errors)


def _region(value: Any) -> RegionState:
    row = _list(value)
    if len(row) != len(RegionState._fields):
        raise ValueError("a region has another number of fields")
    pod_uid, container, problem, processes, ledgers = row
    return RegionState(
        _text(pod_uid),
        _text(container),
        _text(problem),
        _whole(processes),
        tuple(_row(Ledger, ledger) for ledger in _list(ledgers)),
    )


def _row(kind: type[RowT], value: Any) -> RowT:
    row = _list(value)
    expected = kind.__annotations__.values()
    if len(row) != len(expected) or any(type(cell) is not wanted for cell, wanted in zip(row, expected, strict=True)):
        raise ValueError(f"{kind.__name__} with a field of another type")
    return kind(*row)


def _pair(value: Any) -> tuple[Any, Any]:
    first, second = _list(value)
    return first, second


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object was expected")  # noqa: TRY004 (one error family for a bad line)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list was expected")  # noqa: TRY004
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a whole number was expected")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text was expected")  # noqa: TRY004
    return value
