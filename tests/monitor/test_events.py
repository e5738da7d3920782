"""An Event is written when a state turns bad: once, readable, and never in a flood."""

import pytest

from monitor import events
from monitor.events import Events
from monitor.evidence import Evidence, Row
from monitor.messages import Ledger
from monitor.quota import Promise
from monitor.states import GOOD, STATES
from tests.monitor.tree import MIB, T4, T4_BYTES

LEDGER = Ledger(T4, T4_BYTES, 4147 * MIB, "kai", 0, 0, 0, 0, 102 * MIB, 0, 900 * MIB, 0, 0)
ROW = Row("u", "ns", "train", "main", "0", T4, Promise(4147 * MIB, "kai"), LEDGER, 3000 * MIB, "enforced", 1)


class Sink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, str]] = []

    def write(self, row: Row, reason: str, message: str) -> None:
        self.written.append((row.pod, reason, message))


class Bench:
    """Events with a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sink = Sink()
        self.events = Events(self.sink, lambda: self.now)

    def show(self, *rows: Row, wait: float = 0) -> int:
        self.now += wait
        before = len(self.sink.written)
        self.events.announce(Evidence(rows))
        return len(self.sink.written) - before


def row(state: str, pod: str = "train") -> Row:
    return ROW._replace(state=state, pod=pod, pod_uid=pod)


@pytest.mark.parametrize("state", [s for s in STATES if s not in GOOD])
def test_every_bad_state_is_told_once(state: str) -> None:
    bench = Bench()
    assert bench.show(row("enforced")) == 0
    assert bench.show(row(state)) == 1
    assert bench.show(row(state)) == 0
    assert bench.events.counts == {state: 1}


def test_the_message_has_the_numbers() -> None:
    bench = Bench()
    bench.show(row("bypassed"))
    assert bench.sink.written == [
        (
            "train",
            "GPUQuotaBypassed",
            f"Container main holds 3000 MiB on {T4}, of which its ledger knows 1002 MiB: "
            "a program goes round the limit of 4147 MiB.",
        )
    ]


def test_a_state_that_comes_and_goes_is_told_again_after_a_while_only() -> None:
    bench = Bench()
    bench.show(row("bypassed"))
    assert bench.show(row("enforced"), wait=1) + bench.show(row("bypassed"), wait=1) == 0
    assert bench.show(row("enforced"), wait=events.REPEAT_SECONDS) + bench.show(row("bypassed"), wait=1) == 1


def test_many_at_once_are_told_in_turn() -> None:
    """A card that fails turns every pod bad: a burst, then a few a minute, and none is forgotten."""
    bench = Bench()
    rows = [row("bypassed", f"pod-{i}") for i in range(events.BURST + 5)]
    assert bench.show(*rows) == events.BURST
    assert bench.show(*rows, wait=events.REFILL_SECONDS) == 1
    assert bench.show(*rows, wait=4 * events.REFILL_SECONDS) == 4
    assert len({pod for pod, _, _ in bench.sink.written}) == len(rows)


def test_a_sink_that_fails_harms_nobody() -> None:
    class Broken:
        def write(self, row: Row, reason: str, message: str) -> None:
            raise OSError("no")

    broken = Events(Broken(), lambda: 0.0)
    broken.announce(Evidence((row("bypassed"),)))
    assert broken.counts == {"bypassed": 1}
