"""How a client's program speaks with its test: it tells one fact a line and goes on when it is told to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

GIB = 1 << 30


def tell(**facts: object) -> None:
    """Print the facts as one line of JSON and wait until the test has looked at the card."""
    print(json.dumps(facts), flush=True)
    sys.stdin.readline()


def eight_times(way: str, take: Callable[[], Any], give: Callable[[Any], None], error: type[Exception]) -> None:
    """Take 1 GiB eight times; tell how many were granted and what the others said; give all back and tell that."""
    held: list[Any] = []
    refusals: set[str] = set()
    for _ in range(8):
        try:
            held.append(take())
        except error as refusal:
            refusals.add(str(refusal))
    tell(way=way, granted=len(held), refusals=sorted(refusals))
    while held:
        give(held.pop())
    tell(way=way, granted=0)
