"""Tells when a container's enforcement turns bad: once a change, and never more than a pod's owner can read."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from monitor.evidence import Evidence, Row
from monitor.states import GOOD

log = logging.getLogger(__name__)
REPEAT_SECONDS = 600  # the same state on the same container is not told again within
BURST = 20  # events in hand; a card that fails turns every pod bad at once
REFILL_SECONDS = 30  # one more after that time

TEXTS = {
    "mismatch": (
        "GPUQuotaMismatch",
        "{container} was promised {promised} of GPU memory on {device}, but {enforced} is enforced.",
    ),
    "no_limit": ("GPUQuotaNotEnforced", "{container} has no limit on {device}, though {promised} was promised."),
    "over_limit": ("GPUQuotaExceeded", "{container} uses {real} on {device}; its limit is {enforced}."),
    "not_loaded": (
        "GPUQuotaNotLoaded",
        "{container} was promised {promised} of GPU memory on {device}, but the library that enforces it is not in its "
        "programs; they hold {real}.",
    ),
    "bypassed": (
        "GPUQuotaBypassed",
        "{container} holds {real} on {device}, of which its ledger knows {tracked}: a program goes round the limit of "
        "{enforced}.",
    ),
}


class Sink(Protocol):
    """Whoever can write an Event on a pod."""

    def write(self, row: Row, reason: str, message: str) -> None:
        """Write it. Raises OSError where it can't be done."""
        ...


def mib(value: int | None) -> str:
    """A size for people."""
    return "an unknown size" if value is None else f"{value / (1 << 20):.0f} MiB"


class Events:
    """Compares one picture with the next and writes what turned bad, rate limited."""

    def __init__(self, sink: Sink | None, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._states: dict[tuple[str, str, str], str] = {}
        self._told: dict[tuple[str, str, str, str], float] = {}
        self._tokens = float(BURST)
        self._refilled = clock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """What was told so far, by state."""
        return self._counts

    def announce(self, evidence: Evidence) -> None:
        """Tell of every container whose state is bad and was another one in the picture before."""
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._refilled) / REFILL_SECONDS)
        self._refilled = now
        states = {(row.pod_uid, row.container, row.device_uuid): row.state for row in evidence.rows}
        for row in evidence.rows:
            key = row.pod_uid, row.container, row.device_uuid
            if not row.state or row.state in GOOD or self._states.get(key) == row.state:
                continue
            if now - self._told.get((*key, row.state), -REPEAT_SECONDS) < REPEAT_SECONDS:
                continue
            if self._tokens < 1:
                states[key] = self._states.get(key, "")  # told later
                continue
            self._tokens -= 1
            self._told[*key, row.state] = now
            self._tell(row)
        self._states = states
        self._told = {key: when for key, when in self._told.items() if now - when < REPEAT_SECONDS}

    def _tell(self, row: Row) -> None:
        reason, text = TEXTS[row.state]
        message = text.format(
            container=f"Container {row.container}",
            device=row.device_uuid or "the card",
            promised=mib(row.promise.promised if row.promise else None),
            enforced="no limit" if row.ledger and row.enforced is None else mib(row.enforced),
            tracked=mib(row.tracked),
            real=mib(row.real),
        )
        log.warning("pod %s/%s: %s: %s", row.namespace, row.pod, reason, message)
        self._counts[row.state] += 1
        if self._sink and row.namespace:
            try:
                self._sink.write(row, reason, message)
            except OSError as e:
                log.warning("pod %s/%s: event not written: %s", row.namespace, row.pod, e)
