"""A store in memory and a clock that stands still, for tests of certificates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from webhook.authority import Lifetimes
from webhook.health import Health
from webhook.keeper import ConflictError, OwnCertificate
from webhook.metrics import Metrics
from webhook.tls import Contexts

NAMES = ["webhook.isolator.svc", "127.0.0.1"]
LIFETIMES = Lifetimes(ca=timedelta(days=900), certificate=timedelta(days=90), settling=timedelta(seconds=20))


@dataclass
class Clock:
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **delta: float) -> None:
        self.now += timedelta(**delta)


@dataclass
class MemoryStore:
    """Versions and conflicts as the API server has them. `before_write` runs in front of each write: a rival."""

    secret: dict[str, bytes] | None = None
    secret_version: int = 0
    bundles: list[bytes] = field(default_factory=lambda: [b""])
    bundles_version: int = 0
    writes: int = 0
    refuse_reads: bool = False
    refuse_writes: bool = False
    before_write: Callable[[], None] | None = None

    def _write(self) -> None:
        if self.before_write is not None:
            rival, self.before_write = self.before_write, None
            rival()
        if self.refuse_writes:
            raise OSError("403 Forbidden")
        self.writes += 1

    def read(self) -> tuple[dict[str, bytes], str] | None:
        if self.refuse_reads:
            raise OSError("timed out")
        return None if self.secret is None else (dict(self.secret), str(self.secret_version))

    def create(self, data: dict[str, bytes]) -> None:
        self._write()
        if self.secret is not None:
            raise ConflictError
        self.secret, self.secret_version = dict(data), self.secret_version + 1

    def replace(self, data: dict[str, bytes], version: str) -> None:
        self._write()
        if self.secret is None or version != str(self.secret_version):
            raise ConflictError
        self.secret, self.secret_version = dict(data), self.secret_version + 1

    def ca_bundles(self) -> tuple[list[bytes], str]:
        if self.refuse_reads:
            raise OSError("timed out")
        return list(self.bundles), str(self.bundles_version)

    def set_ca_bundles(self, bundles: Sequence[bytes], version: str) -> None:
        self._write()
        if version != str(self.bundles_version):
            raise ConflictError
        self.bundles, self.bundles_version = list(bundles), self.bundles_version + 1


class Replica:
    """One webhook's keeper at a store that several share."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self.contexts = Contexts()
        self.health = Health()
        self.metrics = Metrics()
        self.keeper = OwnCertificate(store, self.contexts, self.metrics, self.health, NAMES, LIFETIMES, clock=clock)

    def look(self) -> None:
        self.keeper.look()

    @property
    def served(self) -> bytes:
        assert self.contexts.served is not None
        return self.contexts.served[0]

    @property
    def ready(self) -> bool:
        return not self.health.complaints()
