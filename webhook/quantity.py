"""Numbers that people write: shares and limits. Text that can't be understood is an error, never a default."""

import re

MIB = 1 << 20

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# ASCII digits only: \d would take full-width ones, which KAI and the library don't.
_LIMIT = re.compile(r"([0-9]+)(?:([kmgt])i?)?", re.IGNORECASE)
_DECIMAL = re.compile(r"0*\.[0-9]+")
_WHOLE = re.compile(r"[0-9]+")
_MAX_LIMIT_BYTES = (1 << 64) - 1
_MAX_BYTES = (1 << 63) - 1
_MAX_DIGITS = 32


def parse_limit(text: str) -> int | None:
    """Return the bytes that a CUDA_DEVICE_MEMORY_LIMIT means (0: no limit), None for blanks only (none given).

    Raises ValueError for what the library refuses.
    """
    stripped = text.strip(" \t\n\r\f\v")
    if not stripped:
        return None
    match = _LIMIT.fullmatch(stripped)
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise ValueError("not a size")
    value = int(match[1]) * _UNITS[(match[2] or "").lower()]
    if value > _MAX_LIMIT_BYTES:
        raise ValueError("too large")
    return value


def parse_positive(text: str, largest: int) -> int | None:
    """Return a whole number from 1 to `largest`, None for anything else."""
    if len(text) > _MAX_DIGITS or not _WHOLE.fullmatch(text):
        return None
    value = int(text)
    return value if 1 <= value <= largest else None


def parse_memory_mib(text: str) -> int | None:
    """Return the MiB of an annotation gpu-memory, None where it isn't a positive whole number of them."""
    return parse_positive(text, _MAX_BYTES // MIB)


def parse_fraction(text: str) -> float | None:
    """Return a share 0 < x < 1 written as a plain decimal, None for anything else (1, nan, 5e-1, 50%)."""
    if len(text) > _MAX_DIGITS or not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if 0 < value < 1 else None
