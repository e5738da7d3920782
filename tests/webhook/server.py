"""The real server in a process of its own, and a client that says exactly what a test wants."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

from webhook import authority
from webhook.authority import Bundle, Lifetimes

ROOT = Path(__file__).parents[2]
LIFETIMES = Lifetimes(ca=timedelta(days=30), certificate=timedelta(days=10), settling=timedelta(0))
START_SECONDS = 30
NAMESPACE = "team"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_certificate(folder: Path) -> Bundle:
    """Write tls.crt, tls.key and ca.crt as cert-manager's Secret has them."""
    bundle = authority.create(["localhost", "127.0.0.1"], datetime.now(UTC), LIFETIMES)
    for name, pem in bundle.data().items():
        part = folder / f".{name}"
        part.write_bytes(pem)
        part.rename(folder / name)
    return bundle


@dataclass
class Webhook:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    ops_port: int
    folder: Path
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "log"

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def connect(self, timeout: float = 20) -> HTTPSConnection:
        return HTTPSConnection("localhost", self.port, context=self.context(), timeout=timeout)

    def plain(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.ops_port, timeout=20)

    def raw(self, timeout: float = 20) -> ssl.SSLSocket:
        return self.context().wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), timeout=timeout), server_hostname="localhost"
        )

    def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request("POST", "/mutate", body, {"Content-Type": "application/json", **(headers or {})})
            return read(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        connection = self.plain()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, line_start: str) -> float:
        page = self.get("/metrics")[1]
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(line_start))

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def memory_bytes(self) -> int:
        """Memory of both processes, pages that they share counted once, as a container's limit counts them."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (self.process.pid, self.worker)]
        lines = [line for rollup in rollups for line in rollup.splitlines() if line.startswith("Pss:")]
        return sum(int(line.split()[1]) << 10 for line in lines)

    @property
    def worker(self) -> int:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(path.read_text().split()[0])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def read(response: HTTPResponse) -> tuple[int, Any]:
    raw = response.read()
    return response.status, json.loads(raw) if raw else None


@contextmanager
def running(
    folder: Path, *flags: str, env: Mapping[str, str] | None = None, module: str = "webhook"
) -> Iterator[Webhook]:
    """Start the webhook with a certificate in `folder`; ready when entered, gone when left."""
    if not (folder / "tls.crt").exists():
        write_certificate(folder)
    port, ops_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", module, "--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops_port}"),
        *("--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key"), "--drain", "0s", *flags),
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KRI_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, env=clean | dict(env or {}))
    webhook = Webhook(process, port, ops_port, folder)
    try:
        _wait_ready(webhook)
        yield webhook
    finally:
        if process.poll() is None:
            webhook.stop()


def _wait_ready(webhook: Webhook) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit and webhook.process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{webhook.ops_port}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the webhook didn't become ready: {webhook.log.read_text()}")


def pod(**annotations: str) -> dict[str, Any]:
    """A pod; underscores of the annotations' names stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job", "namespace": NAMESPACE, "annotations": named},
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "image": "registry.example/cuda:12"}],
        },
    }


def review(pod_object: Any, uid: str = "5f1c5c3e-0000-4000-8000-000000000001", **fields: Any) -> dict[str, Any]:
    """A review as the API server sends it."""
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "job",
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": pod_object,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **fields,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def body(pod_object: Any, **fields: Any) -> bytes:
    return json.dumps(review(pod_object, **fields)).encode()
