"""What the worker process owns beside the HTTP application: metrics, health, certificates, the namespaces' labels."""

import logging
import threading
from typing import Protocol

from webhook.config import Settings
from webhook.files import FileCertificate
from webhook.health import Health
from webhook.log import event
from webhook.metrics import Metrics
from webhook.policy import Namespaces
from webhook.tls import Contexts


class Certificate(Protocol):
    """Where the serving certificate comes from."""

    def look(self) -> None:
        """Bring what is served up to date. Whatever it raises is logged, and tried again at the next look."""


class UnknownNamespaces:
    """Without an API server no labels are known, and nothing is decided from them."""

    def labels(self, name: str) -> dict[str, str] | None:
        """Return None."""
        return None


class Runtime:
    """Built in the worker, after the fork: threads and locks don't survive one."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.health = Health()
        self.contexts = Contexts()
        self.namespaces: Namespaces = UnknownNamespaces()
        self._interval = settings.tls.certificate_check
        self._certificate = self._source(settings)
        self._stop = threading.Event()
        self._complaint = ""

    def _source(self, settings: Settings) -> Certificate:
        return FileCertificate(settings.tls, self.contexts, self.metrics, self.health)

    def start(self) -> None:
        """Look once, so that the first connection finds a certificate, then keep looking in a thread."""
        self._look()
        threading.Thread(target=self._keep_looking, name="certificates", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _keep_looking(self) -> None:
        while not self._stop.wait(self._interval):
            self._look()

    def _look(self) -> None:
        try:
            self._certificate.look()
        except Exception as error:
            self.metrics.certificate_errors.inc()
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self._complaint:
                event(logging.ERROR, "certificates: a look failed", error=complaint)
            self._complaint = complaint
        else:
            self._complaint = ""
