"""Pods by list and watch from an API server that misbehaves in the usual ways, and Events on them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from monitor import cluster
from monitor.apiserver import ApiServer
from monitor.cluster import ClusterPods
from monitor.evidence import Row
from tests.monitor.tree import T4


def pod(number: int, version: int, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"uid": f"u{number}", "namespace": "ns", "name": f"p{number}", "resourceVersion": str(version)},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }


class Server:
    """An API server with a list and a script for each watch."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = 10
        self.broken = False
        self.lists: list[str] = []
        self.watches: list[str] = []
        self.changes: list[dict[str, Any]] = []
        self.news = threading.Condition()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.selectors: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
                outer.selectors.add(query["fieldSelector"])
                if outer.broken:
                    self.send_error(503)
                    return
                if query.get("watch"):
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    outer.watch(query["resourceVersion"], self.wfile)
                else:
                    outer.lists.append(query.get("resourceVersion", ""))
                    body = {"metadata": {"resourceVersion": str(outer.version)}, "items": outer.items}
                    self.answer(200, body)

            def answer(self, status: int, body: Any) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.events.append((self.path, body))
                self.answer(201, body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def watch(self, version: str, out: Any) -> None:
        """Send changes until one of type END."""
        self.watches.append(version)
        while True:
            with self.news:
                while not self.changes:
                    self.news.wait(60)
                change = self.changes.pop(0)
            if change["type"] == "END":
                out.write(b"0\r\n\r\n")
                return
            text = json.dumps(change).encode() + b"\n"
            out.write(b"%x\r\n%s\r\n" % (len(text), text))
            out.flush()

    def send(self, kind: str, item: dict[str, Any] | None = None) -> None:
        """Have the watch say something."""
        with self.news:
            self.changes.append({"type": kind, "object": item or {}})
            self.news.notify_all()

    def api(self) -> ApiServer:
        """A client of this server."""
        return ApiServer(f"http://127.0.0.1:{self.http.server_address[1]}")


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
    pods = ClusterPods(server.api(), "node-a")
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
    pods = ClusterPods(server.api(), "node-a")
    until(lambda: len(server.watches) == 1)
    server.send("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    server.send("END")
    until(lambda: len(server.watches) == 2)
    assert (server.watches, server.lists) == (["10", "77"], ["0"])
    assert names(pods) == set()


def test_history_that_is_gone_is_listed_anew(server: Server) -> None:
    pods = ClusterPods(server.api(), "node-a")
    until(lambda: len(server.watches) == 1)
    server.items = [pod(5, 20)]
    server.send("ERROR", {"code": 410, "message": "too old"})
    until(lambda: names(pods) == {"p5"})
    assert server.lists == ["0", ""], "the API server's memory may be older than what is known already"


def test_a_server_that_is_down_is_said_and_found_again(server: Server) -> None:
    server.broken = True
    server.items = [pod(1, 8)]
    pods = ClusterPods(server.api(), "node-a")

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
    sink = ClusterPods(server.api(), "node-a").events()
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
