"""What a program hands to a call belongs to the program while the call runs: another thread may change it."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import BUILD

from .conftest import MIB, Ground

CASES = [
    "pitch",
    "location",
    "pool",
    "array",
    "array-handle",
    "module",
    "graph",
    "contexts",
    "tiles",
    "captured",
    "device-pool",
    "trim",
]


@pytest.mark.parametrize("case", CASES)
def test_what_another_thread_changes_meanwhile_takes_nothing_past_the_quota(ground: Ground, case: str) -> None:
    """csrc/tests/tamper.c takes what it can get."""
    command = [str(BUILD / "tests" / "tamper"), case]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ground.env("800m", {}), stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        held, used = ground.held(), ground.ledger()["used"]
        program.communicate()
    assert held <= min(used, 800 * MIB)
