"""What a busy cluster does to the webhook: it is down, it is restarted, its certificates end, people spoil things."""

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from e2e.apiserver.replicas import (
    CONFIGURATION_PATH,
    ORDINARY,
    SECRET_PATH,
    SHARE,
    TENANTS,
    Release,
    Replica,
)

STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass
class Load:
    """Pods that are created all the time. Each must be injected."""

    created: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def load(release: Release, threads: int = 4) -> Iterator[Load]:
    result, done, lock = Load(), threading.Event(), threading.Lock()

    def create() -> None:
        while not done.is_set():
            status, answer = release.post(SHARE)
            injected = status == 201 and any(volume["name"] == "vgpu-quota" for volume in answer["spec"]["volumes"])
            with lock:
                result.created += 1
                if not injected:
                    result.failures.append(f"{status} {answer.get('message')}")

    running = [threading.Thread(target=create) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield result
    finally:
        done.set()
        for thread in running:
            thread.join()


@pytest.fixture(autouse=True)
def installed(release: Release) -> None:
    release.install({})


def test_while_it_is_down_only_shares_are_refused(release: Release) -> None:
    assert release.post(ORDINARY)[0] == 201
    status, answer = release.post(SHARE)
    assert status == 500
    assert "failed calling webhook" in answer["message"]


def test_unharmed_by_pods_without_a_share(release: Release) -> None:
    """matchConditions: they never reach the webhook."""
    with release.serving() as replica:
        before = release.metric(replica, "kai_isolator_webhook_reviews_total")
        for _ in range(5):
            assert release.post(ORDINARY)[0] == 201
        assert release.metric(replica, "kai_isolator_webhook_reviews_total") == before


def test_replicas_that_start_together_are_both_trusted(release: Release) -> None:
    """From no Secret at all; each is asked alone afterwards, since the API server keeps the connections that it has."""
    release.cluster.request("DELETE", SECRET_PATH)
    first, second = (release.start("--drain=3s", ready=False) for _ in range(2))
    release.wait_ready(first)
    release.wait_reached()
    with load(release) as result:
        release.cluster.wait("the first one answered", lambda: _reviews(release, first) > 10, 60)
        release.wait_ready(second)
        release.stop(first)
        release.cluster.wait("the second one answered", lambda: _reviews(release, second) > 10, 60)
    release.stop_all()
    assert result.failures == []


def _reviews(release: Release, replica: Replica) -> float:
    return release.metric(replica, "kai_isolator_webhook_reviews_total")


def test_rolling_restart_refuses_no_pod(release: Release) -> None:
    """Two replicas replaced one after the other, three times, under load."""
    first, second = release.start("--drain=3s"), release.start("--drain=3s")
    release.wait_reached()
    with load(release) as result:
        for _ in range(3):
            first, second = second, _replace(release, first)
    release.stop_all()
    assert result.failures == []
    assert result.created > 100


def _replace(release: Release, old: Replica) -> Replica:
    new = release.start("--drain=3s")
    assert release.stop(old) == 0
    return new


def test_certificates_are_renewed_under_load_without_a_failed_request(release: Release) -> None:
    """Lifetimes of seconds: several serving certificates and more than one CA pass by."""
    release.cluster.request("DELETE", SECRET_PATH)
    flags = ("--certificate-lifetime=12s", "--ca-lifetime=36s", "--certificate-check=500ms")
    replicas = [release.start(*flags) for _ in range(2)]
    release.wait_reached()
    first = _first_authority(release)

    def have_passed() -> bool:
        loaded = 'kai_isolator_webhook_certificate_changes_total{event="loaded"}'
        changes = [release.metric(one, loaded) for one in replicas]
        return min(changes) >= 4 and _first_authority(release) != first

    with load(release, threads=2) as result:
        release.cluster.wait("certificates and the first CA have passed", have_passed, 120, 0.5)
        ready = [release.page(one, "/readyz") for one in replicas]
    release.stop_all()
    release.cluster.request("DELETE", SECRET_PATH)
    assert result.failures == []
    assert ready == [(200, "ok\n")] * 2


def _first_authority(release: Release) -> str:
    """The oldest CA that is still trusted."""
    bundle = base64.b64decode(release.cluster.get(SECRET_PATH)["data"]["ca.crt"]).decode()
    return bundle.partition("-----END")[0]


def _blank(release: Release) -> None:
    webhooks = release.cluster.get(CONFIGURATION_PATH)["webhooks"]
    blanked = [{"name": webhook["name"], "clientConfig": {"caBundle": None}} for webhook in webhooks]
    status, answer = release.cluster.request("PATCH", CONFIGURATION_PATH, {"webhooks": blanked}, headers=STRATEGIC)
    assert status == 200, answer


def test_blanked_ca_bundle_is_repaired(release: Release) -> None:
    with release.serving():
        _blank(release)
        release.cluster.wait("the caBundle is back", lambda: release.post(SHARE)[0] == 201, 30)
        time.sleep(1)
        assert release.post(SHARE)[0] == 201


def test_deleted_secret_comes_back_as_it_was(release: Release) -> None:
    """Without the API server noticing."""
    with release.serving(), load(release, threads=1) as result:
        before = release.cluster.get(SECRET_PATH)["data"]
        release.cluster.request("DELETE", SECRET_PATH)
        release.cluster.wait("the Secret is back", lambda: release.cluster.request("GET", SECRET_PATH)[0] == 200, 30)
        assert release.cluster.get(SECRET_PATH)["data"] == before
    assert result.failures == []


def test_spoiled_secret_comes_back_as_it_was(release: Release) -> None:
    with release.serving(), load(release, threads=1) as result:
        before = release.cluster.get(SECRET_PATH)["data"]
        spoiled = {"data": {"tls.crt": base64.b64encode(b"garbage").decode()}}
        release.cluster.request("PATCH", SECRET_PATH, spoiled, headers=MERGE)
        release.cluster.wait("the Secret is whole", lambda: release.cluster.get(SECRET_PATH)["data"] == before, 30)
    assert result.failures == []


def test_label_of_a_namespace_is_seen_while_running(release: Release) -> None:
    """Pod Security: refused soon after the label came, accepted soon after it went."""
    path = f"/api/v1/namespaces/{TENANTS}"
    key = "pod-security.kubernetes.io/enforce"
    with release.serving():
        release.cluster.request("PATCH", path, {"metadata": {"labels": {key: "baseline"}}}, headers=MERGE)
        release.cluster.wait("the label is seen", lambda: "PodSecurityEnforced" in str(release.post(SHARE)[1]), 30)
        release.cluster.request("PATCH", path, {"metadata": {"labels": {key: None}}}, headers=MERGE)
        release.cluster.wait("it is seen that it went", lambda: release.post(SHARE)[0] == 201, 30)
