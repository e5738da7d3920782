"""A serving certificate in files that somebody else keeps (cert-manager's Secret, mounted), followed live."""

from dataclasses import dataclass
from datetime import UTC, datetime

from webhook.config import Tls
from webhook.health import Health
from webhook.metrics import Metrics
from webhook.tls import Contexts, expiry


@dataclass(frozen=True, slots=True)
class FileCertificate:
    """Serves what the files say. A pair that doesn't fit (half updated) leaves the last good one in service."""

    tls: Tls
    contexts: Contexts
    metrics: Metrics
    health: Health

    def look(self) -> None:
        """Serve the files' present content, and report expiry. Raises OSError or ValueError where they are bad."""
        assert self.tls.tls_cert is not None  # noqa: S101 (settings are checked)
        assert self.tls.tls_key is not None  # noqa: S101
        try:
            client_ca = self.tls.client_ca.read_bytes() if self.tls.client_ca else None
            if self.contexts.serve(self.tls.tls_cert.read_bytes(), self.tls.tls_key.read_bytes(), client_ca):
                self.metrics.certificate_changes.labels("loaded").inc()
        finally:
            self._report()

    def _report(self) -> None:
        if self.contexts.served is None:
            self.health.report("certificate", "no certificate yet")
            return
        end = expiry(self.contexts.served[0])
        self.metrics.certificate_expiry.labels("serving").set(end.timestamp())
        self.health.report("certificate", "" if end > datetime.now(UTC) else f"expired at {end.isoformat()}")
