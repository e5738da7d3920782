"""Asks all sources, joins what they say and keeps the newest picture. Each source fails alone and visibly."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from monitor.cards import CardsError, CardSource
from monitor.evidence import Evidence
from monitor.hangproof import HangingError, Hangproof
from monitor.joiner import Joiner
from monitor.messages import Scan
from monitor.metrics import Report, SourceHealth
from monitor.pods import Pod, PodSource

log = logging.getLogger(__name__)
T = TypeVar("T")
NOTHING = Scan(frozenset(), (), {}, {}, {})
FAILURES = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, CardsError, HangingError)


class ScanSource(Protocol):
    """Whoever can look at the regions and find where processes belong: the reader."""

    def scan(self, pids: Sequence[int]) -> Scan:
        """Look once. Raises OSError, EOFError or ValueError."""
        ...


class Announcer(Protocol):
    """Whoever tells the world that a state turned bad."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What was told so far, by state."""
        ...

    def announce(self, evidence: Evidence) -> None:
        """Compare with the picture before and tell what is new."""
        ...


class Sources:
    """The health of each source, counted."""

    def __init__(self, names: Sequence[str], wall: Callable[[], float]) -> None:
        self._wall = wall
        self._errors = dict.fromkeys(names, 0)
        self._success: dict[str, float] = {}
        self._problem: dict[str, str] = {}

    def succeed(self, name: str) -> None:
        """Note that the source answered."""
        if self._problem.pop(name, None):
            log.info("source %s: answers again", name)
        self._success[name] = self._wall()

    def fail(self, name: str, message: str, count: int = 1) -> None:
        """Note failures; the log has a line when the message changes, the counter has all."""
        self._errors[name] += count
        if self._problem.get(name) != message:
            log.warning("source %s: %s", name, message)
        self._problem[name] = message

    def health(self) -> dict[str, SourceHealth]:
        """What the page tells."""
        return {
            name: SourceHealth(name in self._success and name not in self._problem, errors, self._success.get(name))
            for name, errors in self._errors.items()
        }


class Updater:
    """Makes reports: on demand, and every interval so that time-dependent states don't depend on being scraped."""

    def __init__(
        self,
        *,
        reader: ScanSource,
        cards: CardSource,
        pods: PodSource | None,
        joiner: Joiner,
        announcer: Announcer,
        deadline: float,
        version: str = "",
        abi: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pids: Sequence[int] = ()
        self._scan = Hangproof("reader", lambda: reader.scan(self._pids))
        self._cards = Hangproof("nvml", cards.read)
        self._pods = Hangproof("pods", pods.read) if pods else None
        self._joiner = joiner
        self._announcer = announcer
        self._deadline = deadline
        self._identity = version, abi
        self._clock = clock
        self._sources = Sources(("regions", "proc", "nvml", *(("pods",) if pods else ())), wall)
        self._bad: Counter[str] = Counter()
        self._known: Mapping[str, Pod] | None = None
        self._turn = threading.Condition()
        self._started = self._finished = 0
        self._running = False
        self._ended: float | None = None
        self._report = Report(Evidence())

    def update(self) -> Report:
        """Ask all sources once, one caller at a time."""
        began = self._clock()
        cards = self._ask("nvml", self._cards)
        if self._pods:
            # Names don't go stale as numbers do: without the API server the last known ones are the best there are.
            named = self._ask("pods", self._pods)
            self._known = self._known if named is None else named
        pods = self._known
        self._pids = sorted({pid for card in cards or () for pid in card.processes})
        scan = self._look()
        evidence = self._joiner.join(scan, cards, pods, began)
        self._bad.update(r.problem for r in scan.regions if r.problem not in ("", "absent"))
        self._announcer.announce(evidence)
        version, abi = self._identity
        return Report(
            evidence=evidence,
            sources=self._sources.health(),
            bad_regions=dict(self._bad),
            events=dict(self._announcer.counts),
            update_seconds=self._clock() - began,
            version=version,
            abi=abi,
        )

    def _ask(self, name: str, source: Hangproof[T]) -> T | None:
        try:
            answer = source.ask(self._deadline)
        except FAILURES as e:
            self._sources.fail(name, str(e) or type(e).__name__)
            return None
        self._sources.succeed(name)
        return answer

    def _look(self) -> Scan:
        try:
            scan = self._scan.ask(self._deadline)
        except FAILURES as e:
            for name in ("regions", "proc"):
                self._sources.fail(name, str(e) or type(e).__name__)
            return NOTHING
        for name in ("regions", "proc"):
            if name in scan.errors:
                count, message = scan.errors[name]
                self._sources.fail(name, message, count)
            else:
                self._sources.succeed(name)
        return scan

    def age(self) -> float | None:
        """Seconds since an update ended well, with whatever sources; None before the first."""
        return None if self._ended is None else self._clock() - self._ended

    def fresh(self, seconds: float) -> Report:
        """Give a report begun after this call, shared with all who ask meanwhile; the last one if it's late."""
        end = time.monotonic() + seconds
        with self._turn:
            wanted = self._started + 1
            while self._running and self._finished < wanted:
                if not self._turn.wait(end - time.monotonic()):
                    return self._report
            if self._finished >= wanted:
                return self._report
            self._running = True
            self._started += 1
        report, ended = self._report, self._ended
        try:
            report = self.update()
            ended = self._clock()
        except Exception:
            log.exception("update failed")
        with self._turn:
            self._report = report
            self._running = False
            self._finished = self._started
            self._ended = ended
            self._turn.notify_all()
        return report
