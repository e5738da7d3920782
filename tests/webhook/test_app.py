"""What the application does when something of its own breaks."""

import json

import pytest

from tests.webhook.server import body, pod
from webhook import config
from webhook.app import create_app
from webhook.endpoint import Services
from webhook.health import Health
from webhook.metrics import Metrics

FLAGS = ["--tls-cert", "unused", "--tls-key", "unused"]


class Broken:
    def labels(self, name: str) -> dict[str, str] | None:
        raise RuntimeError(f"secret detail about {name}")


def test_own_failure_is_a_bare_500_and_a_full_log_line(capfd: pytest.CaptureFixture[str]) -> None:
    """The client learns that it failed; only the log says how, and about which pod. The pod isn't let through."""
    services = Services(config.load(FLAGS, {}).rules, Broken(), Metrics(), Health())
    client = create_app(services, 1 << 20).test_client()
    answer = client.post(
        "/mutate", data=body(pod(gpu_memory="4096")), content_type="application/json", base_url="https://localhost"
    )
    assert answer.status_code == 500
    assert answer.get_json() == {"error": "internal error, see the webhook's log"}
    record = json.loads(capfd.readouterr().err.splitlines()[0])
    assert (record["level"], record["namespace"], record["name"]) == ("error", "team", "job")
    assert "secret detail" in record["exception"]


def test_readiness_lists_what_is_wrong() -> None:
    health = Health()
    client = create_app(Services(config.load(FLAGS, {}).rules, Broken(), Metrics(), health), 1 << 20).test_client()
    assert client.get("/readyz").status_code == 200
    health.report("certificate", "no certificate yet")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "certificate: no certificate yet\n")
    assert client.get("/healthz").status_code == 200
    health.report("certificate")
    assert client.get("/readyz").status_code == 200
