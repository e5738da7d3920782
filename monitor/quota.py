"""Which share a container was promised, by the rules that the library too goes by. Values only.

What KAI computed holds if it fits the annotation: KAI rounds a share up to hundredths of the card, so it is at most
the annotation's value plus 1/100 of the card plus 100 MiB. Else the annotation's own value holds.
"""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

MIB = 1 << 20
SLACK_BYTES = 100 * MIB
SIZE = re.compile(r"([0-9]{1,64})(?:([kmgt])i?)?\Z", re.IGNORECASE)
FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Share:
    """What a pod's annotations ask for, for one container and each of its devices."""

    container: str
    memory_bytes: int | None = None
    fraction: Decimal | None = None
    devices: int = 1


class Promise(NamedTuple):
    """The share in bytes of one device, where it came from, and KAI's value if it wasn't believed."""

    promised: int
    source: str  # "kai", "gpu-memory" or "gpu-fraction"
    disbelieved: int | None = None


def parse_size(text: str) -> int | None:
    """Read a size such as 4147m, 4Gi or 1024 in bytes; None for anything else."""
    match = SIZE.match(text.strip(" \t\n\v\f\r"))
    if not match:
        return None
    size = int(match[1]) * FACTORS[(match[2] or "").lower()]
    return size if size < 1 << 64 else None


def parse_memory(text: str) -> int | None:
    """Read annotation gpu-memory, a positive whole number of MiB, as bytes; None for anything else."""
    text = text.strip()
    return int(text) * MIB if re.fullmatch(r"[0-9]{1,12}", text) and int(text) else None


def parse_fraction(text: str) -> Decimal | None:
    """Read annotation gpu-fraction, between 0 and 1 without the two; None for anything else."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() and 0 < value < 1 else None


def promise(share: Share, kai_limit: str | None, card_bytes: int | None) -> Promise | None:
    """Work out what holds on a card of that size; None where it can't be told (a fraction of an unknown card)."""
    if share.memory_bytes is not None:
        own, source = share.memory_bytes, "gpu-memory"
    elif share.fraction is not None and card_bytes is not None:
        own, source = int(share.fraction * card_bytes), "gpu-fraction"
    else:
        return None
    kai = parse_size(kai_limit) if kai_limit else None
    disbelieved = None
    if kai is not None and kai > 0:
        if kai <= own + (card_bytes or 0) // 100 + SLACK_BYTES:
            own, source = kai, "kai"
        else:
            disbelieved = kai
    return Promise(min(own, card_bytes) if card_bytes else own, source, disbelieved)
