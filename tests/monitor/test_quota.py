"""The promise is worked out as KAI and the library do."""

from decimal import Decimal

import pytest

from monitor.quota import Promise, Share, parse_fraction, parse_memory, parse_size, promise
from tests.monitor.tree import MIB, T4_BYTES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4147m", 4147 * MIB),
        (" 4147M\n", 4147 * MIB),
        ("4Gi", 4 << 30),
        ("1t", 1 << 40),
        ("1024", 1024),
        ("10k", 10240),
        ("", None),
        ("abc", None),
        ("-1", None),
        ("1.5g", None),
        ("4147mb", None),
        ("4147 m", None),
        ("9" * 30, None),
    ],
)
def test_sizes_are_read_as_the_library_reads_them(text: str, value: int | None) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("share", "kai", "expected"),
    [
        (Share("main", memory_bytes=4096 * MIB), "4147m", Promise(4147 * MIB, "kai")),
        (Share("main", memory_bytes=4096 * MIB), None, Promise(4096 * MIB, "gpu-memory")),
        (Share("main", memory_bytes=4096 * MIB), "", Promise(4096 * MIB, "gpu-memory")),
        (Share("main", fraction=Decimal("0.5")), None, Promise(7680 * MIB, "gpu-fraction")),
        (Share("main", fraction=Decimal("0.333")), "5068m", Promise(5068 * MIB, "kai")),
        (Share("main", memory_bytes=460 * MIB), "614m", Promise(614 * MIB, "kai")),
        (Share("main", memory_bytes=4096 * MIB), "4348654387m", Promise(4096 * MIB, "gpu-memory", 4348654387 * MIB)),
        (Share("main", memory_bytes=4096 * MIB), "12g", Promise(4096 * MIB, "gpu-memory", 12 << 30)),
        (Share("main", memory_bytes=99999 * MIB), None, Promise(T4_BYTES, "gpu-memory")),
    ],
)
def test_kais_value_holds_where_it_fits_the_annotation(share: Share, kai: str | None, expected: Promise) -> None:
    assert promise(share, kai, T4_BYTES) == expected


def test_a_fraction_of_an_unknown_card_is_unknown() -> None:
    assert promise(Share("main", fraction=Decimal("0.5")), "7680m", None) is None
    assert promise(Share("main", memory_bytes=4096 * MIB), None, None) == Promise(4096 * MIB, "gpu-memory")


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "4Gi", "x"])
def test_malformed_memory_is_no_share(text: str) -> None:
    assert parse_memory(text) is None


@pytest.mark.parametrize("text", ["", "0", "1", "-0.5", "2", "nan", "inf", "x"])
def test_malformed_fractions_are_no_share(text: str) -> None:
    assert parse_fraction(text) is None
