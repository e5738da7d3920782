"""The state of enforcement follows from the numbers and from how long they have been so."""

import pytest

from monitor.states import STATES, Facts, Patience, judge
from tests.monitor.tree import MIB

SLACK = 64 * MIB
LIMIT = 4147 * MIB
FINE = Facts(
    injected=True,
    promised=LIMIT,
    disbelieved=False,
    region="",
    seen_before=True,
    processes=1,
    listed=True,
    limit=LIMIT,
    source="kai",
    physical=15360 * MIB,
    tracked=3174 * MIB,
    real=3174 * MIB,
)
GONE = {"region": "absent", "processes": 0, "listed": False, "limit": None, "source": "none", "tracked": 0}
IDLE = {"processes": 0, "tracked": 0, "real": 0}


@pytest.mark.parametrize(
    ("changes", "now", "lasting"),
    [
        ({}, "enforced", "enforced"),
        (IDLE, "enforced", "enforced"),
        ({"real": None}, "enforced", "enforced"),
        ({**GONE, "real": 0, "seen_before": False}, "unused", "unused"),
        ({**GONE, "real": None, "seen_before": False}, "unused", "unused"),
        ({**GONE, "seen_before": False}, "unused", "not_loaded"),
        ({**GONE}, "unused", "bypassed"),
        ({**GONE, "injected": False, "real": 0}, "not_loaded", "not_loaded"),
        ({"processes": 0, "tracked": 0}, "enforced", "not_loaded"),
        ({**GONE, "region": "magic"}, "unused", "bypassed"),
        ({**GONE, "region": "unfinished", "real": 0}, "unused", "unused"),
        ({"limit": None, "source": "unlimited"}, "no_limit", "no_limit"),
        ({"source": "unusable", "limit": 0, **IDLE}, "mismatch", "mismatch"),
        ({"limit": LIMIT * 2}, "mismatch", "mismatch"),
        ({"limit": LIMIT // 2, **IDLE}, "mismatch", "mismatch"),
        ({"limit": LIMIT // 2, "source": "environment", **IDLE}, "enforced", "enforced"),
        ({"limit": LIMIT * 2, "source": "environment"}, "mismatch", "mismatch"),
        ({"limit": LIMIT + 1}, "enforced", "enforced"),
        ({"promised": 20000 * MIB, "limit": 15360 * MIB}, "enforced", "enforced"),
        ({"disbelieved": True}, "mismatch", "mismatch"),
        ({"promised": None}, "enforced", "enforced"),
        ({"tracked": LIMIT + 1, "real": LIMIT + 1}, "enforced", "over_limit"),
        ({"tracked": LIMIT, "real": LIMIT + SLACK}, "enforced", "enforced"),
        ({"real": 3174 * MIB + SLACK + 1}, "enforced", "bypassed"),
        ({"real": 3174 * MIB + SLACK}, "enforced", "enforced"),
        ({"tracked": LIMIT, "real": 14000 * MIB}, "enforced", "bypassed"),
    ],
)
def test_each_state_has_its_numbers(changes: dict[str, object], now: str, lasting: str) -> None:
    assert judge(FINE._replace(**changes), SLACK) == (now, lasting)  # type: ignore[arg-type]


def test_what_the_card_says_counts_after_the_grace_time_only() -> None:
    patience = Patience(10)
    assert patience.settle("a", "enforced", "bypassed", 100) == "enforced"
    assert patience.settle("a", "enforced", "bypassed", 109.9) == "enforced"
    assert patience.settle("a", "enforced", "bypassed", 110) == "bypassed"
    assert patience.settle("a", "enforced", "enforced", 111) == "enforced"
    assert patience.settle("a", "enforced", "bypassed", 112) == "enforced", "a moment of agreement starts the time anew"


def test_another_pending_state_starts_its_own_grace_time() -> None:
    patience = Patience(10)
    patience.settle("a", "enforced", "bypassed", 100)
    assert patience.settle("a", "enforced", "over_limit", 109) == "enforced"
    assert patience.settle("a", "enforced", "over_limit", 119) == "over_limit"


def test_ended_containers_are_forgotten() -> None:
    patience = Patience(10)
    patience.settle("a", "enforced", "bypassed", 100)
    patience.forget_others([])
    assert patience.settle("a", "enforced", "bypassed", 200) == "enforced"


def test_every_state_can_come_out() -> None:
    """The table above brings each of them about."""
    table = next(mark for mark in test_each_state_has_its_numbers.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {lasting for _, _, lasting in table.args[1]} == set(STATES)
