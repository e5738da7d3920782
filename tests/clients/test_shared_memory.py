"""Memory that processes of one container share is charged once, for as long as it lives, whoever dies first."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest

from tests.clients.conftest import MIB, PROGRAMS, QUOTA, Container, environment

STEPS = 120
SIZES = [300_000, 2 * MIB, 3 * MIB, 100 * MIB, 500 * MIB]


class Sharer:
    """A process that takes, exports and imports on order; what it holds by name, and what it exported."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.held: dict[int, str] = {}
        self.exported: dict[int, str] = {}

    def order(self, do: str, **details: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({"do": do, **details}), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def sharer(container: Container) -> Iterator[Sharer]:
    command = [environment("cuda13"), PROGRAMS / "sharer.py"]
    with subprocess.Popen(
        command, env=container.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            one = Sharer(process)
            one.order("look")
            yield one
        finally:
            process.kill()


def step(chance: random.Random, sharers: list[Sharer], names: Iterator[int]) -> str:
    """One random thing that one of them does."""
    one = chance.choice(sharers)
    others = [handle for other in sharers if other is not one for handle in other.exported.values()]
    own = [name for name, kind in one.held.items() if kind == "own" and name not in one.exported]
    do = chance.choice(["take", "take", "export", "import", "import", "give", "give"])
    name = next(names)
    if do == "take" and one.order("take", name=name, bytes=chance.choice(SIZES))["done"]:
        one.held[name] = "own"
    elif do == "export" and own:
        name = chance.choice(own)
        one.exported[name] = one.order("export", name=name)["handle"]
    elif do == "import" and others and one.order("import", name=name, handle=chance.choice(others))["done"]:
        one.held[name] = "imported"
    elif do == "give" and one.held:
        name = chance.choice(list(one.held))
        one.order("give", name=name)
        del one.held[name]
        one.exported.pop(name, None)
    return do


def agree(container: Container, one: Sharer) -> tuple[int, int]:
    """What the card holds and what the quota counts, once they are the same or half a second has passed."""
    for _ in range(50):
        held, used = container.card.truth()[0]["used_bytes"], one.order("look")["used"]
        if held == used:
            break
        time.sleep(0.01)
    return held, used


@pytest.mark.parametrize("seed", [1, 2])
def test_every_block_is_charged_to_somebody_who_lives(container: Container, seed: int) -> None:
    """Three processes share at random, and now and then one is killed and replaced: exporters die before importers."""
    chance = random.Random(seed)  # noqa: S311 - a run that can be repeated
    names = count()
    with ExitStack() as stack:
        sharers = [stack.enter_context(sharer(container)) for _ in range(3)]
        for number in range(STEPS):
            if chance.random() < 0.05:
                victim = sharers.pop(chance.randrange(len(sharers)))
                victim.process.kill()
                victim.process.wait()
                sharers.append(stack.enter_context(sharer(container)))
                did = "kill"
            else:
                did = step(chance, sharers, names)
            held, used = agree(container, chance.choice(sharers))
            assert held == used <= QUOTA, f"step {number}, after {did}: the card holds {held}, counted are {used}"
