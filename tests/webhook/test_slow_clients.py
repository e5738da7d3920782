"""Clients that are slow, silent, many or greedy: the others are served meanwhile, and memory stays flat."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.webhook.server import Webhook, body, pod, running

HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def strained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """A server with room for 200 connections and little patience."""
    with running(
        tmp_path_factory.mktemp("strained"), "--max-connections", "200", "--read-timeout", "2500ms"
    ) as webhook:
        yield webhook


@pytest.fixture(autouse=True)
def many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))


def works(webhook: Webhook) -> bool:
    return bool(webhook.post(body(pod(gpu_memory="4096")))[1]["response"]["allowed"])


def test_silent_connections_keep_nobody_out(strained: Webhook) -> None:
    """Ten times as many as there is room for, none of which ever says a word."""
    with ExitStack() as open_sockets:
        for _ in range(2000):
            open_sockets.enter_context(socket.create_connection(("127.0.0.1", strained.port), timeout=20))
        assert works(strained)


def test_half_requests_keep_nobody_out(strained: Webhook) -> None:
    """Each past its handshake, in the middle of a body."""
    with ExitStack() as open_sockets:
        for _ in range(300):
            sock = open_sockets.enter_context(strained.raw())
            sock.sendall(HEAD % 1000 + b"{")
        assert works(strained)


def test_slow_body_is_given_up_with_408(strained: Webhook) -> None:
    """One byte at a time doesn't buy more time: the deadline is for the whole request."""
    with strained.raw() as sock:
        sock.sendall(HEAD % 1000)
        begin = time.monotonic()
        answer = b""
        sock.settimeout(0.1)
        while not answer and time.monotonic() - begin < 15:
            sock.sendall(b" ")
            try:
                answer = sock.recv(4096)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_slow_handshake_is_given_up(strained: Webhook) -> None:
    with socket.create_connection(("127.0.0.1", strained.port), timeout=20) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert sock.recv(4096) == b""


def test_client_that_never_reads_is_let_go(strained: Webhook) -> None:
    """Requests without end, answers unread: the server neither waits nor keeps them."""
    content = body(pod(gpu_memory="4096"))
    with strained.raw(timeout=0.2) as sock:
        try:
            for _ in range(20_000):
                sock.sendall(HEAD % len(content) + content)
        except OSError:
            pass
        assert works(strained)


def test_many_large_bodies_at_once_leave_memory_flat(strained: Webhook) -> None:
    """Forty bodies of 2.5 MiB that never end: what is held is bounded, and others are served."""
    assert works(strained)
    before = strained.memory_bytes()
    with ExitStack() as open_sockets:
        for _ in range(40):
            sock = open_sockets.enter_context(strained.raw(timeout=5))
            try:
                sock.sendall(HEAD % (3 << 20) + b" " * (5 << 19))
            except OSError:
                continue
        assert works(strained)
        assert strained.memory_bytes() - before < 48 << 20


COSTLY = {"too many": b"[]," * 900_000, "as many as allowed": b"[]," * 180_000, "long": b'"%s",' % (b"x" * 2_900_000)}


@pytest.mark.parametrize("values", COSTLY.values(), ids=COSTLY)
def test_huge_json_is_answered_and_forgotten(strained: Webhook, values: bytes) -> None:
    """The largest and the costliest bodies, from several clients at once."""
    costly = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"a":[' + values + b"[]]}}"
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(strained.post(costly)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert works(strained)
    for thread in threads:
        thread.join()
    assert codes == [400] * 4
    assert strained.memory_bytes() < 256 << 20


def test_what_was_dropped_is_counted(strained: Webhook) -> None:
    assert strained.metric("kai_isolator_webhook_connections_dropped_total") > 0
    assert strained.metric("kai_isolator_webhook_http_errors_total") > 0


def test_nothing_of_it_was_an_error_of_ours(strained: Webhook) -> None:
    assert [record for record in strained.records() if record["level"] == "error"] == []


def test_connections_go_when_clients_go(tmp_path: Path) -> None:
    """No socket stays behind."""
    with running(tmp_path) as webhook:
        for _ in range(100):
            webhook.raw().close()
        limit = time.monotonic() + 10
        while webhook.metric("kai_isolator_webhook_connections ") > 1 and time.monotonic() < limit:
            time.sleep(0.05)
        assert webhook.metric("kai_isolator_webhook_connections ") == 1
