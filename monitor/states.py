"""State of enforcement of one container on one card: what the numbers say, and for how long they have said it.

    unused      nothing of the container has touched the card so far
    enforced    the library's limit is the promised one and the card agrees with the ledger
    mismatch    the library enforces another limit than the promised one, or refuses every program for want of one
    no_limit    the library is there and enforces nothing
    over_limit  the card or the ledger shows more than the limit
    not_loaded  the container has a share, but the library isn't in it: not injected, or its memory has no ledger
    bypassed    it holds more on the card than its ledger knows of, or its ledger was taken away

What depends on the card's numbers counts once it has held for the grace time: ledger and card are never read at the
same instant. Later ones of this list are worse and win.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

STATES = ("unused", "enforced", "mismatch", "no_limit", "over_limit", "not_loaded", "bypassed")
GOOD = ("unused", "enforced")
ROUNDING_BYTES = 1 << 20


class Facts(NamedTuple):
    """What is known about one container and card. Sizes in bytes, None where nobody can tell."""

    injected: bool | None  # None: the pod's own object is not known
    promised: int | None
    disbelieved: bool  # KAI's value did not fit the annotation
    region: str  # "" for a good one, "absent", or what is wrong with it
    seen_before: bool  # a good region was there earlier in the container's life
    processes: int  # living ones that the region knows
    listed: bool  # this card is in the region
    limit: int | None
    source: str
    physical: int | None
    tracked: int
    real: int | None


def judge(facts: Facts, slack_bytes: int) -> tuple[str, str]:
    """Say (state at once, state if it stays so): the second one depends on the card's numbers."""
    now = _by_ledger(facts)
    real = facts.real or 0
    held = real > slack_bytes
    if facts.region not in ("", "absent"):
        return now, "bypassed" if held else now
    if facts.region == "absent" or not facts.processes:
        return now, ("bypassed" if facts.region and facts.seen_before else "not_loaded") if held else now
    if real > facts.tracked + slack_bytes:
        return now, "bypassed"
    if facts.limit is not None and max(facts.tracked, real - slack_bytes) > facts.limit:
        return now, worse(now, "over_limit")
    return now, now


def _by_ledger(facts: Facts) -> str:
    if facts.injected is False:
        return "not_loaded"
    if facts.region or not facts.listed:
        return "unused"
    if facts.source == "unusable" or facts.disbelieved:
        return "mismatch"
    if facts.source == "none":
        return "unused"
    if facts.limit is None:
        return "no_limit"
    if facts.promised is not None:
        expected = min(facts.promised, facts.physical or facts.promised)
        lowered = facts.source == "environment" and facts.limit < expected
        if abs(facts.limit - expected) > ROUNDING_BYTES and not lowered:
            return "mismatch"
    return "enforced"


def worse(one: str, other: str) -> str:
    """The worse of two states."""
    return max(one, other, key=STATES.index)


class Patience:
    """Remembers since when each thing has been in a pending state. Times in seconds of one monotonic clock."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._since: dict[Hashable, tuple[str, float]] = {}

    def settle(self, key: Hashable, now: str, pending: str, clock: float) -> str:
        """Give the state that holds: `pending` if it has been so for the grace time, else `now`."""
        if pending == now:
            self._since.pop(key, None)
            return now
        state, since = self._since.get(key, ("", clock))
        if state != pending:
            since = clock
        self._since[key] = pending, since
        return pending if clock - since >= self._grace else now

    def forget_others(self, keys: Iterable[Hashable]) -> None:
        """Drop what is known of everything but these."""
        kept = set(keys)
        self._since = {key: value for key, value in self._since.items() if key in kept}
