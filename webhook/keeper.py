"""Keeps the webhook's own certificates: Secret, caBundle and what is served, brought together at every look.

Any number of replicas do this at once. The Secret decides: whoever loses a race for it adopts what the winner wrote.
A certificate is served only after its CA has been in the caBundle for the settling time, unless nothing better is
there. What was served last is remembered: a Secret that somebody deleted or spoiled is written again from it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cryptography import x509

from webhook import authority
from webhook.authority import Bundle, CorruptError, Lifetimes
from webhook.health import Health
from webhook.log import event
from webhook.metrics import Metrics
from webhook.tls import Contexts

_ATTEMPTS = 5


class ConflictError(Exception):
    """Somebody else wrote first: read again."""


class Store(Protocol):
    """The API server, as far as certificates go. Whatever else goes wrong is raised as OSError."""

    def read(self) -> tuple[dict[str, bytes], str] | None:
        """Return the Secret's data and its version, None where there is no Secret."""

    def create(self, data: dict[str, bytes]) -> None:
        """Make the Secret. Raises ConflictError where there is one."""

    def replace(self, data: dict[str, bytes], version: str) -> None:
        """Replace the Secret's data. Raises ConflictError where it isn't of this version any more."""

    def ca_bundles(self) -> tuple[list[bytes], str]:
        """Return the caBundle of each webhook in the configuration, and the configuration's version."""

    def set_ca_bundles(self, bundles: Sequence[bytes], version: str) -> None:
        """Write the caBundles. Raises ConflictError where the configuration isn't of this version any more."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class OwnCertificate:
    """One replica's view. `names` are the DNS names and addresses that the API server may call."""

    store: Store
    contexts: Contexts
    metrics: Metrics
    health: Health
    names: Sequence[str]
    lifetimes: Lifetimes
    client_ca: Path | None = None
    clock: Callable[[], datetime] = _now
    _served: Bundle | None = None
    _trusted: list[bytes] = field(default_factory=list)
    _trusted_since: dict[bytes, datetime] = field(default_factory=dict)

    def look(self) -> None:
        """Bring everything up to date. Raises OSError where the API server doesn't let us; what is served stays."""
        try:
            bundle, failure = self._stored()
            self._publish(bundle)
            self._serve(bundle)
            if failure is not None:
                raise failure
        finally:
            self._report()

    def _stored(self) -> tuple[Bundle, OSError | None]:
        """Return the bundle to use. A failed write is returned beside it where an older bundle is still good."""
        for _ in range(_ATTEMPTS):
            present = self.store.read()
            bundle = self._read(present)
            wanted = authority.renew(bundle, self.names, self.clock(), self.lifetimes) if bundle else self._restored()
            if wanted is bundle:
                return wanted, None
            try:
                if present is None:
                    self.store.create(wanted.data())
                else:
                    self.store.replace(wanted.data(), present[1])
            except ConflictError:
                continue
            except OSError as error:
                fallback = bundle or self._served
                if fallback is None:
                    raise
                return fallback, error
            self.metrics.certificate_changes.labels("renewed" if bundle else "stored").inc()
            event(logging.INFO, "certificates: Secret written", renewed=bundle is not None)
            return wanted, None
        raise OSError("the Secret is changed by somebody else all the time")

    def _read(self, present: tuple[dict[str, bytes], str] | None) -> Bundle | None:
        if present is None or not any(present[0].values()):
            return None
        try:
            return Bundle.read(present[0])
        except CorruptError as error:
            event(logging.WARNING, "certificates: the Secret is spoiled and is made again", error=str(error))
            return None

    def _restored(self) -> Bundle:
        """Return what this replica serves, so that nobody has to trust something new; else a new bundle."""
        now = self.clock()
        if self._served is not None and self._served.leaf().not_valid_after_utc > now:
            return authority.renew(self._served, self.names, now, self.lifetimes)
        return authority.create(self.names, now, self.lifetimes)

    def _publish(self, bundle: Bundle) -> None:
        wanted = bundle.authorities()
        if self._served is not None and (current := self._issuer(self._served)) not in wanted and current:
            wanted.append(current)
        for _ in range(_ATTEMPTS):
            present, version = self.store.ca_bundles()
            self._trusted = present
            merged = [authority.merge(pem, wanted, self.clock()) for pem in present]
            if any(pem is not None for pem in merged):
                bundles = [new or old for new, old in zip(merged, present, strict=True)]
                try:
                    self.store.set_ca_bundles(bundles, version)
                except ConflictError:
                    continue
                self.metrics.certificate_changes.labels("published").inc()
                event(logging.INFO, "certificates: caBundle written", authorities=len(wanted))
                self._trusted = bundles
            return
        raise OSError("the webhook configuration is changed by somebody else all the time")

    @staticmethod
    def _issuer(bundle: Bundle) -> x509.Certificate | None:
        return authority.issuer(bundle.certificate, bundle.ca_bundle)

    def _serve(self, bundle: Bundle) -> None:
        now = self.clock()
        if self._is_trusted(bundle):
            since = self._trusted_since.setdefault(bundle.certificate, now)
        else:
            self._trusted_since.pop(bundle.certificate, None)
            since = now
        settled = now - since >= self.lifetimes.settling
        same_issuer = self._served is not None and self._issuer(self._served) == self._issuer(bundle)
        if self._served is None or settled or same_issuer or self._served.leaf().not_valid_after_utc <= now:
            client_ca = self.client_ca.read_bytes() if self.client_ca else None
            if self.contexts.serve(bundle.certificate, bundle.key, client_ca):
                self.metrics.certificate_changes.labels("loaded").inc()
                event(logging.INFO, "certificates: served", expires=bundle.leaf().not_valid_after_utc.isoformat())
            self._served = bundle
            self._trusted_since = {bundle.certificate: since}

    def _is_trusted(self, bundle: Bundle) -> bool:
        try:
            return bool(self._trusted) and all(authority.issuer(bundle.certificate, pem) for pem in self._trusted)
        except ValueError:
            return False

    def _report(self) -> None:
        served = self._served
        if served is None:
            self.health.report("certificate", "no certificate yet")
            return
        end = served.leaf().not_valid_after_utc
        self.metrics.certificate_expiry.labels("serving").set(end.timestamp())
        self.metrics.certificate_expiry.labels("ca").set(served.authorities()[-1].not_valid_after_utc.timestamp())
        if end <= self.clock():
            self.health.report("certificate", f"expired at {end.isoformat()}")
        elif not self._is_trusted(served):
            self.health.report("certificate", "the webhook configuration's caBundle doesn't trust what is served")
        else:
            self.health.report("certificate")
