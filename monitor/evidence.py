"""The picture of a node at one moment: what was promised, enforced, charged, really held and refused. Values only."""

from dataclasses import dataclass
from typing import NamedTuple

from monitor.cards import Card
from monitor.messages import Ledger
from monitor.quota import Promise

UNSHARED = ""  # state of what has no share: nothing is owed, nothing is enforced


class Row(NamedTuple):
    """One container on one card. Sizes in bytes, None where nobody can tell."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    vdevice: str  # index of the card in the container; empty where only the host knows of it
    device_uuid: str
    promise: Promise | None
    ledger: Ledger | None
    real: int | None
    state: str
    processes: int
    utilization: float | None = None
    last_kernel: float | None = None  # seconds since the last launch that was noticed

    @property
    def tracked(self) -> int:
        """Bytes that the library has charged."""
        return self.ledger.tracked if self.ledger else 0

    @property
    def enforced(self) -> int | None:
        """The limit that holds, None where there is none."""
        return self.ledger.limit if self.ledger and self.ledger.limit >= 0 else None

    @property
    def unaccounted(self) -> int | None:
        """Bytes on the card that the library knows nothing of."""
        return None if self.real is None else max(0, self.real - self.tracked)


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card, what was promised on it, and what is held there by others than containers with a share, in bytes."""

    card: Card
    promised: int
    unknown: int  # by processes of no known pod
    unshared: int  # by containers without a share
    unlisted: int  # by nobody that NVML lists: the driver's own, or processes that it hides


@dataclass(frozen=True, slots=True)
class Evidence:
    """The node at one moment."""

    rows: tuple[Row, ...] = ()
    cards: tuple[CardRow, ...] = ()
    bad_regions: tuple[tuple[str, str, str, str], ...] = ()  # namespace, pod, container, problem
