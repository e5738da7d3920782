"""How fast the webhook answers, beside a no-op of the same stack in the same run: `python -m tests.webhook.bench`.

Reviews of 7.7 KB over TLS on connections that stay open, each asking again as soon as it is answered. The generator
is one loop and leaves the other core to the server. On a busy machine every number is noisy, so webhook and no-op are
asked in turns and each figure is the best of its turns.
"""

import json
import os
import selectors
import ssl
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from flask import Flask, Response, jsonify, request

from tests.webhook import server
from tests.webhook.server import Webhook
from webhook import config, log
from webhook.server import Application

REVIEW_BYTES = 7700
TURNS = 8
TURN_SECONDS = 1.5
CONNECTIONS = (8, 64)
MEMORY_REVIEWS = 100_000


def review_body() -> bytes:
    """A pod as a training operator makes it and KAI leaves it, filled up with variables."""
    case = Path(__file__).with_name("cases") / "kai-second-call" / "pod.yaml"
    pod = yaml.safe_load(case.read_text())
    body = server.body(pod)
    env = pod["spec"]["containers"][0]["env"]
    while len(body) < REVIEW_BYTES:
        env.append({"name": f"SETTING_{len(env):03d}", "value": "x" * min(40, max(1, REVIEW_BYTES - len(body) - 40))})
        body = server.body(pod)
    return body


@dataclass(frozen=True)
class Figures:
    """One turn, or the best of several. Times in milliseconds; `cpu_ms` is the server's processor time per review."""

    connections: int
    reviews: int
    reviews_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Client:
    """One connection that always has one request under way."""

    def __init__(self, webhook: Webhook, payload: bytes) -> None:
        self.sock = webhook.raw()
        self.sock.setblocking(False)
        self._payload = payload
        self._received = bytearray()
        self._sent_at = 0.0

    def send(self) -> None:
        """Send the next request; it fits the socket's buffer."""
        self._received.clear()
        self._sent_at = time.perf_counter()
        sent = self.sock.send(self._payload)
        assert sent == len(self._payload)

    def receive(self) -> float | None:
        """Return how long the answer took, None while it isn't complete."""
        try:
            while part := self.sock.recv(65536):
                self._received += part
        except ssl.SSLWantReadError:
            pass
        head, mark, content = bytes(self._received).partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not mark or len(content) < int(length):
            return None
        assert head.startswith(b"HTTP/1.1 200"), head
        return time.perf_counter() - self._sent_at


def load(webhook: Webhook, connections: int, body: bytes, seconds: float = 0, reviews: int = 0) -> Figures:
    """Ask for so many seconds, or so many reviews."""
    head = f"POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    payload = head.encode() + b"\r\n\r\n" + body
    clients = [Client(webhook, payload) for _ in range(connections)]
    times: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client)
        cpu, begin = _cpu_seconds(webhook), time.perf_counter()
        for client in clients:
            client.send()
        while time.perf_counter() - begin < seconds or len(times) < reviews:
            for key, _ in selector.select():
                took = key.data.receive()
                if took is not None:
                    times.append(took)
                    key.data.send()
        elapsed, cpu = time.perf_counter() - begin, _cpu_seconds(webhook) - cpu
    for client in clients:
        client.sock.close()
    times.sort()
    return Figures(
        connections=connections,
        reviews=len(times),
        reviews_per_second=round(len(times) / elapsed, 1),
        p50_ms=round(1000 * times[len(times) // 2], 3),
        p99_ms=round(1000 * times[int(len(times) * 0.99)], 3),
        cpu_ms=round(1000 * cpu / len(times), 4),
    )


def _cpu_seconds(webhook: Webhook) -> float:
    fields = Path(f"/proc/{webhook.worker}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Noop(Application):
    """The same server, worker and framework with a view that only reads the body and allows."""

    def load(self) -> Any:
        """Return the no-op instead of the application."""
        super().load()
        app = Flask("noop", static_folder=None)

        @app.post("/mutate")
        def mutate() -> Response:
            uid = request.get_json()["request"]["uid"]
            answer = {"uid": uid, "allowed": True}
            return jsonify({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

        @app.get("/readyz")
        def readyz() -> str:
            return "ok"

        return app


def main() -> dict[str, Any]:
    """Return the figures: webhook and no-op at each number of connections, ratio of processor time, memory."""
    body = review_body()
    result: dict[str, Any] = {"review_bytes": len(body), "webhook": [], "noop": [], "cost_ratio": []}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        folders = Path(one), Path(other)
        with server.running(folders[0]) as webhook, server.running(folders[1], module="tests.webhook.bench") as noop:
            for each in (webhook, noop):
                load(each, 8, body, seconds=1)  # warm
            for connections in CONNECTIONS:
                turns = [
                    [load(each, connections, body, seconds=TURN_SECONDS) for each in (webhook, noop)]
                    for _ in range(TURNS)
                ]
                ours, theirs = (best([turn[place] for turn in turns]) for place in (0, 1))
                result["webhook"].append(asdict(ours))
                result["noop"].append(asdict(theirs))
                result["cost_ratio"].append(round(ours.cpu_ms / theirs.cpu_ms, 3))
    result["memory_reviews"] = MEMORY_REVIEWS
    result["memory_mib"] = round(memory_bytes(body) / (1 << 20), 1)
    return result


def best(turns: list[Figures]) -> Figures:
    """Return the best of each figure, and all reviews together."""
    return Figures(
        connections=turns[0].connections,
        reviews=sum(turn.reviews for turn in turns),
        reviews_per_second=max(turn.reviews_per_second for turn in turns),
        p50_ms=min(turn.p50_ms for turn in turns),
        p99_ms=min(turn.p99_ms for turn in turns),
        cpu_ms=min(turn.cpu_ms for turn in turns),
    )


def memory_bytes(body: bytes) -> int:
    """Return what a replica holds after many reviews, with the client of the API server that it has in a cluster."""
    with tempfile.TemporaryDirectory() as name, ThreadingHTTPServer(("127.0.0.1", 0), Namespaces) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config_file = Path(name, "kubeconfig")
        config_file.write_text(
            json.dumps(
                {
                    "clusters": [cluster],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [context],
                    "current-context": "x",
                }
            )
        )
        env = {"KUBECONFIG": str(config_file)}
        with server.running(Path(name), "--cluster=kubeconfig", env=env) as webhook:
            load(webhook, 8, body, reviews=MEMORY_REVIEWS)
            found = webhook.memory_bytes()
        api.shutdown()
    return found


class Namespaces(BaseHTTPRequestHandler):
    """As much of an API server as the watch of namespaces needs: a list of one, and nothing ever changes."""

    def do_GET(self) -> None:
        """Answer a list; let a watch end after a while."""
        if "watch=" in self.path:
            time.sleep(1)
            content = b""
        else:
            item = {"metadata": {"name": server.NAMESPACE, "resourceVersion": "1"}}
            content = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [item]}).encode()
        with suppress(ConnectionError):  # the webhook was stopped meanwhile
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def serve_noop(arguments: list[str]) -> None:
    """Be the no-op server, with the webhook's own flags."""
    settings = config.load(arguments)
    log.configure("warning")
    Noop(settings).run()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_noop(sys.argv[1:])
    else:
        print(json.dumps(main(), indent=2))
