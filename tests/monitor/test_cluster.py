"""Pods by list and watch from an API server that misbehaves in the usual ways, and Events on them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monitor import cluster
from monitor.apiserver import ApiServer
from monitor.cluster import ClusterPods
from monitor.evidence import Row
from tests.monitor.apiserver import Server
from tests.monitor.tree import T4


def pod(number: int, version: int, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"uid": f"u{number}", "namespace": "ns", "name": f"p{number}", "resourceVersion": str(version)},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(cluster, "RETRY_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(cluster, "FIRST_LIST_SECONDS", 10)
    made = Server()
    yield made
    made.send("END")
    made.http.shutdown()
    made.http.server_close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(pods: ClusterPods) -> set[str]:
    return {known.name for known in pods.read().values()}


def test_pods_are_listed_and_then_followed(server: Server) -> None:
    server.items = [pod(1, 8), pod(2, 9), pod(3, 9, "Succeeded")]
    pods = ClusterPods(ApiServer(server.url), "node-a")
    assert names(pods) == {"p1", "p2"}
    server.send("ADDED", pod(4, 11))
    until(lambda: names(pods) == {"p1", "p2", "p4"})
    server.send("MODIFIED", pod(1, 12, "Failed"))
    until(lambda: names(pods) == {"p2", "p4"})
    server.send("DELETED", pod(2, 13))
    until(lambda: names(pods) == {"p4"})
    assert server.selectors == {"spec.nodeName=node-a"}, "other nodes' pods cost nothing"
    assert server.lists == ["0"], "from the API server's memory: a restart of all nodes' monitors costs etcd nothing"


def test_a_watch_that_ends_goes_on_where_it_was(server: Server) -> None:
    pods = ClusterPods(ApiServer(server.url), "node-a")
    until(lambda: len(server.watches) == 1)
    server.send("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    server.send("END")
    until(lambda: len(server.watches) == 2)
    assert (server.watches, server.lists) == (["10", "77"], ["0"])
    assert names(pods) == set()


def test_history_that_is_gone_is_listed_anew(server: Server) -> None:
    pods = ClusterPods(ApiServer(server.url), "node-a")
    until(lambda: len(server.watches) == 1)
    server.items = [pod(5, 20)]
    server.send("ERROR", {"code": 410, "message": "too old"})
    until(lambda: names(pods) == {"p5"})
    assert server.lists == ["0", ""], "the API server's memory may be older than what is known already"


def test_a_server_that_is_down_is_said_and_found_again(server: Server) -> None:
    server.broken = True
    server.items = [pod(1, 8)]
    pods = ClusterPods(ApiServer(server.url), "node-a")

    def broken() -> bool:
        try:
            pods.read()
        except OSError as e:
            return "503" in str(e)
        return False

    pods._listed.set()  # a first answer isn't worth waiting for here
    until(broken)
    server.broken = False
    until(lambda: not broken())
    assert names(pods) == {"p1"}


def test_an_event_is_written_on_the_pod(server: Server) -> None:
    sink = ClusterPods(ApiServer(server.url), "node-a").events()
    sink.write(Row("u1", "ns", "p1", "main", "0", T4, None, None, 0, "bypassed", 0), "GPUQuotaBypassed", "text")
    until(lambda: bool(server.events))
    path, body = server.events[0]
    assert path == "/api/v1/namespaces/ns/events"
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "p1",
        "uid": "u1",
        "fieldPath": "spec.containers{main}",
    }
    assert (body["type"], body["reason"], body["message"]) == ("Warning", "GPUQuotaBypassed", "text")
