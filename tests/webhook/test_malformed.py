"""Whatever JSON comes instead of a pod, the answer is a decision or a bad request, never an accident."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.webhook import cases
from webhook import review
from webhook.pod import MalformedObjectError

SEED = 20260101
ROUNDS = 20
STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1e308,
    "",
    "x",
    "\ud800",
    "0" * 5000,
    [],
    [None],
    [[]],
    {},
    {"": None},
    {"name": {}},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def spoil(pod: Any, chance: random.Random) -> Any:
    """Put something strange at a few places of the pod."""
    spoiled = copy.deepcopy(pod)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice([path for path in places(spoiled) if path])
        parent = spoiled
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = copy.deepcopy(chance.choice(STRANGE))
        if not isinstance(spoiled, dict) or not spoiled:
            break
    return spoiled


def test_strange_pods_are_decided_or_refused() -> None:
    """Thousands of pods of the cases with strange values in them: what comes out can always be sent."""
    chance = random.Random(SEED)  # noqa: S311 (the same pods at each run)
    outcomes = {"decided": 0, "refused": 0}
    for case in cases.load():
        for _ in range(ROUNDS):
            spoiled = spoil(case.pod, chance)
            try:
                decision = case.decide(spoiled)
            except MalformedObjectError:
                outcomes["refused"] += 1
            else:
                outcomes["decided"] += 1
                review.render("uid", decision).encode()
    assert min(outcomes.values()) > ROUNDS


# What could confuse a reader that looks at the text: everything that JSON's own signs are made of.
LETTERS = '":\\,{}[] a\n'
SEPARATORS = ((",", ":"), (", ", ": "), (",", " :"), (",\n", ":\t"))


def object_text(pairs: list[tuple[str, object]], separators: tuple[str, str]) -> bytes:
    comma, colon = separators
    members = (json.dumps(key) + colon + json.dumps(value, separators=separators) for key, value in pairs)
    return ("{" + comma.join(members) + "}").encode()


def any_text(chance: random.Random) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randint(0, 4)))


def any_value(chance: random.Random) -> object:
    return chance.choice([any_text(chance), [any_text(chance), 1], {any_text(chance): any_text(chance)}])


@pytest.mark.parametrize("separators", SEPARATORS, ids=repr)
def test_any_text_is_read_and_any_key_that_comes_twice_is_refused(separators: tuple[str, str]) -> None:
    """Whatever keys and values are made of, and however the JSON is spaced."""
    chance = random.Random(SEED)  # noqa: S311 (the same texts at each run)
    for _ in range(3000):
        keys = {any_text(chance) for _ in range(3)}
        pairs = [(key, any_value(chance)) for key in keys]
        assert review.load(object_text(pairs, separators)) == dict(pairs)
        pairs.insert(chance.randint(0, len(pairs)), (chance.choice([*keys]), any_value(chance)))
        with pytest.raises(review.BadRequestError, match="same key twice"):
            review.load(object_text(pairs, separators))
