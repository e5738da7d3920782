"""Each source fails alone, visibly, and without holding up anybody."""

import threading
import time
from collections.abc import Mapping, Sequence

import pytest

from monitor.cards import Card, CardsError
from monitor.events import Events
from monitor.hangproof import HangingError, Hangproof
from monitor.joiner import Joiner
from monitor.messages import Ledger, RegionState, Scan
from monitor.metrics import Report
from monitor.pods import Pod
from monitor.quota import Share
from monitor.updater import Updater
from tests.monitor.tree import MIB, T4, T4_BYTES

LEDGER = Ledger(T4, T4_BYTES, 4096 * MIB, "gpu-memory", 0, 0, 0, 0, MIB, 0, 0, MIB, 0)
SCAN = Scan(frozenset({"u"}), (RegionState("u", "main", "", 1, (LEDGER,)),), {}, {}, {})
POD = Pod("u", "ns", "train", {"main": "c"}, Share("main", 4096 * MIB), injected=True)


class Fake:
    """All three sources in one; each may be told to fail or to hang."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.hang = threading.Event()
        self.hang.set()
        self.entered = 0

    def _answer(self) -> None:
        self.entered += 1
        self.hang.wait()
        if self.trouble:
            raise self.trouble


class Cards(Fake):
    def read(self) -> tuple[Card, ...]:
        self._answer()
        return (Card("0", T4, "Tesla T4", T4_BYTES, 5 * MIB, 0.0, {7: 5 * MIB}),)


class Pods(Fake):
    def read(self) -> Mapping[str, Pod]:
        self._answer()
        return {"u": POD}


class Reader(Fake):
    pids: Sequence[int] = ()
    found = SCAN

    def scan(self, pids: Sequence[int]) -> Scan:
        self.pids = pids
        self._answer()
        return self.found


class Bench:
    """An updater with sources that obey."""

    def __init__(self, deadline: float = 5) -> None:
        self.cards, self.pods, self.reader = Cards(), Pods(), Reader()
        self.updater = Updater(
            reader=self.reader,
            cards=self.cards,
            pods=self.pods,
            joiner=Joiner(10, MIB),
            announcer=Events(None, time.monotonic),
            deadline=deadline,
        )

    def release(self) -> None:
        for source in (self.cards, self.pods, self.reader):
            source.hang.set()


def up(report: Report) -> dict[str, bool]:
    return {name: health.up for name, health in report.sources.items()}


ALL_UP = {"regions": True, "proc": True, "nvml": True, "pods": True}


def test_all_sources_answer() -> None:
    bench = Bench()
    report = bench.updater.update()
    assert up(report) == ALL_UP
    assert bench.reader.pids == [7], "the reader is asked about the processes that NVML lists"
    assert report.evidence.rows[0].pod == "train"


@pytest.mark.parametrize("name", ["nvml", "pods", "regions"])
def test_a_source_that_fails_leaves_the_others_and_comes_back(name: str) -> None:
    bench = Bench()
    source: Fake = {"nvml": bench.cards, "pods": bench.pods, "regions": bench.reader}[name]
    source.trouble = CardsError("no driver") if name == "nvml" else OSError("broken")
    down = {name, "proc"} if name == "regions" else {name}
    for round_number in (1, 2):
        report = bench.updater.update()
        assert up(report) == {**ALL_UP, **dict.fromkeys(down, False)}
        assert all(report.sources[d].errors == round_number for d in down)
    source.trouble = None
    report = bench.updater.update()
    assert up(report) == ALL_UP
    assert report.sources[name].errors == 2


def test_names_outlive_the_api_servers_silence() -> None:
    bench = Bench()
    bench.updater.update()
    bench.pods.trouble = OSError("gone")
    report = bench.updater.update()
    assert not report.sources["pods"].up
    assert report.evidence.rows[0].pod == "train"


def test_failures_that_the_reader_reports_are_counted_by_source() -> None:
    bench = Bench()
    bench.reader.found = SCAN._replace(errors={"proc": (3, "denied")})
    report = bench.updater.update()
    assert up(report) == {**ALL_UP, "proc": False}
    assert report.sources["proc"].errors == 3


def test_bad_regions_are_counted_by_their_problem() -> None:
    bench = Bench()
    bench.reader.found = SCAN._replace(
        regions=(RegionState("u", "main", "magic", 0, ()), RegionState("u", "b", "absent", 0, ()))
    )
    bench.updater.update()
    assert bench.updater.update().bad_regions == {"magic": 2}


def test_nvml_that_hangs_costs_a_deadline_and_no_more_threads() -> None:
    bench = Bench(deadline=0.05)
    bench.cards.hang.clear()
    before = threading.active_count()
    for _ in range(5):
        report = bench.updater.update()
        assert not report.sources["nvml"].up
        assert report.evidence.rows[0].tracked == MIB, "the ledgers are shown all the same"
    assert threading.active_count() == before + 1
    assert bench.cards.entered == 1
    bench.release()
    deadline = time.monotonic() + 20
    while not bench.updater.update().sources["nvml"].up:
        assert time.monotonic() < deadline, "NVML answers again and isn't asked"


def test_a_late_answer_is_thrown_away() -> None:
    gate = threading.Event()
    answers = iter(("old", "new"))

    def call() -> str:
        answer = next(answers)
        gate.wait(20)
        return answer

    source = Hangproof("x", call)
    with pytest.raises(HangingError):
        source.ask(0.05)
    with pytest.raises(HangingError):
        source.ask(1000)  # at once: somebody waits already
    gate.set()
    deadline = time.monotonic() + 20
    while True:
        try:
            assert source.ask(20) == "new"
        except HangingError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            break


def test_scrapes_at_once_share_one_update_begun_after_they_came() -> None:
    bench = Bench(deadline=30)
    bench.cards.hang.clear()
    reports: list[Report] = []
    threads = [threading.Thread(target=lambda: reports.append(bench.updater.fresh(30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    while not bench.cards.entered:
        time.sleep(0.005)
    bench.release()
    for thread in threads:
        thread.join()
    assert len(reports) == 8
    assert bench.cards.entered <= 3, "one update for the first, one for all who came meanwhile"


def test_a_scrape_that_cant_wait_gets_the_last_picture() -> None:
    bench = Bench(deadline=30)
    first = bench.updater.fresh(30)
    bench.cards.hang.clear()
    thread = threading.Thread(target=bench.updater.fresh, args=(30,))
    thread.start()
    while bench.cards.entered < 2:
        time.sleep(0.005)
    assert bench.updater.fresh(0.05) is first
    bench.release()
    thread.join()


def test_age_counts_from_the_last_update_that_ended_well(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    bench = Bench()
    monkeypatch.setattr(bench.updater, "_clock", lambda: now[0])
    assert bench.updater.age() is None, "nothing can be served yet"
    bench.cards.trouble = CardsError("no driver")
    bench.updater.fresh(30)
    assert bench.updater.age() == 0, "a source that fails is no failure of the update"
    now[0] += 7
    monkeypatch.setattr(bench.updater, "update", lambda: 1 / 0)
    bench.updater.fresh(30)
    assert bench.updater.age() == 7
