"""What the webhook tells Prometheus. One registry a process: the server has one worker process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from webhook.policy import Decision
from webhook.reasons import ALL, Outcome

_PREFIX = "kai_isolator_webhook_"
# The API server waits 10 s at most; a decision takes well under a millisecond.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 10)


class Metrics:
    """The metrics, with every reason's series there from the start (so that rates have a first value)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        reviews = Counter(
            _PREFIX + "reviews",
            "Reviews answered, by decision and reason.",
            ["decision", "reason"],
            registry=self.registry,
        )
        warnings = Counter(_PREFIX + "warnings", "Warnings given, by reason.", ["reason"], registry=self.registry)
        self._reviews = {
            r.code: reviews.labels(r.outcome.value, r.code) for r in ALL if r.outcome is not Outcome.WARNING
        }
        warned = [r for r in ALL if r.outcome is Outcome.WARNING or r.code == "OptedOut"]
        self._warnings = {r.code: warnings.labels(r.code) for r in warned}
        self._duration = Histogram(
            _PREFIX + "review_duration_seconds",
            "Time from a review's whole body to its answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.http_errors = Counter(
            _PREFIX + "http_errors",
            "Requests refused without a decision.",
            ["code"],
            registry=self.registry,
        )
        self.connections = Gauge(_PREFIX + "connections", "Open connections.", registry=self.registry)
        self.connections_dropped = Counter(
            _PREFIX + "connections_dropped",
            "Connections closed by the server: too slow, or the longest idle one at the limit.",
            ["cause"],
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            _PREFIX + "certificate_expiry_timestamp_seconds",
            "When the certificate expires (Unix time): the one that is served, and the newest CA.",
            ["certificate"],
            registry=self.registry,
        )
        self.certificate_changes = Counter(
            _PREFIX + "certificate_changes",
            "Certificates loaded, renewed or repaired, by event.",
            ["event"],
            registry=self.registry,
        )
        self.certificate_errors = Counter(
            _PREFIX + "certificate_errors",
            "Failed looks at certificate or caBundle.",
            registry=self.registry,
        )
        self.ready = Gauge(_PREFIX + "ready", "1 while the webhook is ready.", registry=self.registry)

    def reviewed(self, decision: Decision, seconds: float) -> None:
        """Count one answered review."""
        self._reviews[decision.reason.code].inc()
        self._duration.observe(seconds)
        for warned in decision.warnings:
            self._warnings[warned.reason.code].inc()

    def render(self) -> bytes:
        """Return the page in the Prometheus text format."""
        return generate_latest(self.registry)
