"""The node's cards as NVML tells of them: values only. Whoever asks NVML is in nvml.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class CardsError(Exception):
    """NVML can't be asked now; the message says why."""


@dataclass(frozen=True, slots=True)
class Card:
    """One card, or one MIG instance of a card. Sizes in bytes; None is what NVML doesn't know."""

    index: str
    uuid: str
    name: str
    total: int | None
    used: int | None
    utilization: float | None  # 0 to 1
    processes: Mapping[int, int | None] = field(default_factory=dict)  # pid on the host -> bytes
    process_utilization: Mapping[int, float] | None = None  # pid -> 0 to 1; None: not supported


class CardSource(Protocol):
    """Whoever can list the cards."""

    def read(self) -> tuple[Card, ...]:
        """Ask for all cards as they are now. Raises CardsError; may block for as long as the driver does."""
        ...
