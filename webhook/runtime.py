"""What the worker process owns beside the HTTP application: metrics, health, certificates, the namespaces' labels."""

import gc
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from webhook.authority import Lifetimes
from webhook.config import Cluster, Settings, Tls
from webhook.files import FileCertificate
from webhook.health import Health
from webhook.keeper import OwnCertificate
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
        tls = settings.tls
        self._certificate: Certificate = FileCertificate(tls, self.contexts, self.metrics, self.health)
        self._closing: list[Callable[[], None]] = []
        self._interval = tls.certificate_check
        self._stop = threading.Event()
        self._complaint = ""
        if tls.cluster is not Cluster.NONE:
            self._use_cluster(tls)

    def _use_cluster(self, tls: Tls) -> None:
        # Late: the client's twenty megabytes are for those who have a cluster.
        from webhook import cluster  # noqa: PLC0415

        api = cluster.connect(tls.cluster)
        watched = cluster.WatchedNamespaces(api, self.health)
        watched.start()
        self._closing.append(watched.close)
        self.namespaces = watched
        if tls.own:
            store = cluster.KubernetesStore(api, tls.namespace, tls.tls_secret, tls.webhook_configuration)
            lifetimes = Lifetimes(
                ca=timedelta(seconds=tls.ca_lifetime),
                certificate=timedelta(seconds=tls.certificate_lifetime),
                settling=timedelta(seconds=2 * tls.certificate_check),
            )
            self._certificate = OwnCertificate(
                store, self.contexts, self.metrics, self.health, server_names(tls), lifetimes, tls.client_ca
            )

    def start(self) -> None:
        """Look once, so that the first connection finds a certificate, then keep looking in a thread."""
        self._look()
        # A review leaves no cycles behind: the collector need not walk over everything after every few of them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        threading.Thread(target=self._keep_looking, name="certificates", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        for close in self._closing:
            close()

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


def server_names(tls: Tls) -> list[str]:
    """Return the names that the own certificate is for: the Service's, as the API server calls it, and further ones."""
    service = f"{tls.service}.{tls.namespace}"
    return [f"{service}.svc", f"{service}.svc.cluster.local", service, *tls.server_names]
