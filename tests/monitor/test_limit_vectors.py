"""A limit means to the monitor what it means to the library."""

import json
from pathlib import Path

import pytest

from monitor.quota import parse_size

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "limits.json").read_text())


@pytest.mark.parametrize(("text", "expected"), VECTORS["sizes"])
def test_limits_mean_what_the_library_reads(text: str, expected: int | str | None) -> None:
    """The vectors that the C library and the webhook are run through too. What isn't a size is no limit to compare."""
    assert parse_size(text) == (expected if isinstance(expected, int) else None)
