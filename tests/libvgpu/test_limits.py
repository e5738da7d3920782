"""Which quota holds: the parser's vectors, and the rules that decide between what is found."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "limits.json").read_text(encoding="utf-8"))
MIB = 1024 * 1024
CARD = 15360 * MIB
KAI, MEMORY, FRACTION, ENV, UNLIMITED, UNUSABLE = 1, 2, 3, 4, 5, 6


def parsed(build: Path, texts: list[str], *arguments: str) -> list[object]:
    program = build / "tests" / "core-limits"
    done = subprocess.run(
        [program, *arguments], input="".join(t + "\0" for t in texts).encode(), capture_output=True, check=True
    )
    meaning = {"empty": None, "refused": "refused"}
    return [meaning[line] if line in meaning else int(line) for line in done.stdout.decode().split()]


def test_every_size_means_what_the_vectors_say(build: Path) -> None:
    texts = [text for text, _ in VECTORS["sizes"]]
    assert dict(zip(texts, parsed(build, texts, "size"), strict=True)) == dict(VECTORS["sizes"])


def test_every_fraction_means_what_the_vectors_say(build: Path) -> None:
    vectors = VECTORS["fractions_of_16106127360"]
    texts = [text for text, _ in vectors]
    assert dict(zip(texts, parsed(build, texts, "fraction", "16106127360"), strict=True)) == dict(vectors)


def decide(build: Path, *, mounted: int = 1, injected: int = 1, **texts: str) -> tuple[int, int, int]:
    """Bytes, source, and the value that was not believed."""
    words = [texts.get(name, "-") for name in ("limit", "memory", "fraction", "environment")]
    command: list[str | Path] = [
        build / "tests" / "core-limits",
        "decide",
        str(CARD),
        str(injected),
        str(mounted),
        *words,
    ]
    done = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split(maxsplit=3)
    return int(done[0]), int(done[1]), int(done[2])


def test_kai_limit_holds_where_it_fits_the_annotation(build: Path) -> None:
    assert decide(build, limit="4147m", memory="4096") == (4147 * MIB, KAI, 0)


def test_kai_limit_of_a_fraction_holds(build: Path) -> None:
    assert decide(build, limit="5068m", fraction="0.333") == (5068 * MIB, KAI, 0)


@pytest.mark.parametrize(("memory", "limit"), [("460", "614m"), ("15148", "15360m"), ("1", "153m")])
def test_kai_rounding_up_is_within_what_is_believed(build: Path, memory: str, limit: str) -> None:
    assert decide(build, limit=limit, memory=memory) == (int(limit[:-1]) * MIB, KAI, 0)


def test_a_limit_far_above_the_annotation_is_not_believed(build: Path) -> None:
    assert decide(build, limit="4348654387m", memory="4096") == (4096 * MIB, MEMORY, 4348654387 * MIB)


def test_without_kai_limit_the_annotation_holds(build: Path) -> None:
    assert decide(build, memory="4096") == (4096 * MIB, MEMORY, 0)
    assert decide(build, limit="", fraction="0.5") == (7680 * MIB, FRACTION, 0)
    assert decide(build, limit="0m", memory="4096") == (4096 * MIB, MEMORY, 0)


def test_environment_lowers_and_never_raises(build: Path) -> None:
    assert decide(build, limit="4147m", memory="4096", environment="2g") == (2048 * MIB, ENV, 0)
    assert decide(build, limit="4147m", memory="4096", environment="8g") == (4147 * MIB, KAI, 0)
    assert decide(build, limit="4147m", memory="4096", environment="0") == (4147 * MIB, KAI, 0)


def test_environment_equal_to_the_annotation_is_the_webhooks_own(build: Path) -> None:
    assert decide(build, limit="4147m", memory="4096", environment="4096m") == (4147 * MIB, KAI, 0)


def test_limit_above_the_card_is_the_card(build: Path) -> None:
    assert decide(build, memory="20000") == (CARD, MEMORY, 0)
    assert decide(build, injected=0, environment="1t") == (CARD, ENV, 0)


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"limit": ""},
        {"limit": "abc", "memory": "4096"},
        {"limit": "4147m", "memory": "4096m"},
        {"limit": "4147m", "memory": "-1"},
        {"limit": "4147m", "fraction": "1.5"},
        {"memory": "4096", "environment": "lots"},
        {"limit": "4147m" + " " * 80, "memory": "4096"},
        {"limit": "99999g"},
    ],
    ids=str,
)
def test_what_cannot_be_understood_fails_closed(build: Path, texts: dict[str, str]) -> None:
    assert decide(build, mounted=1, injected=1, **texts)[1] == UNUSABLE


def test_quota_directory_that_is_no_mount_fails_closed(build: Path) -> None:
    assert decide(build, mounted=0, limit="4147m", memory="4096")[1] == UNUSABLE


def test_by_hand_the_environment_decides(build: Path) -> None:
    assert decide(build, injected=0, environment="2200m") == (2200 * MIB, ENV, 0)
    assert decide(build, injected=0) == (2**64 - 1, UNLIMITED, 0)
    assert decide(build, injected=0, environment="0") == (2**64 - 1, UNLIMITED, 0)
    assert decide(build, injected=0, environment="-1")[1] == UNUSABLE
