"""gunicorn's threaded worker with another front: one loop reads all connections and answers ordinary reviews itself.

What is changed, and why:
- gunicorn lets a thread wait for a client's handshake, head and body; here the loop does, for all at once, with one
  deadline for the whole request. A few slow clients can't occupy the threads.
- A review is computed from memory in a fraction of a millisecond, so the loop does it: under one interpreter lock the
  hand-over to a thread costs more than the review and doubles the slowest answers. Large bodies go to the threads.
- At the limit of connections gunicorn stops accepting; here the connection that waited longest without ever having
  completed a request is closed, so that idle connections can't keep the API server out.
- On SIGTERM requests are still taken for the drain time, each answered with `Connection: close`, while /readyz says
  503: endpoints and clients have gone elsewhere before the socket closes.
"""

import errno
import logging
import resource
import selectors
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from gunicorn import http
from gunicorn.workers.gthread import ThreadWorker

from webhook.config import Server
from webhook.connection import Connection, Limits, Progress
from webhook.log import event
from webhook.runtime import Runtime

_LINGER_SECONDS = 2.0
_SWEEP_SECONDS = 0.25
_ACCEPTS_AT_ONCE = 64
_OTHER_DESCRIPTORS = 64
_PARSE_CODES = {http.errors.LimitRequestLine: 414, http.errors.LimitRequestHeaders: 431}
# Above this a body's parsing would hold up the others for longer than the hand-over costs.
_LARGE_BYTES = 64 << 10


class ReviewWorker(ThreadWorker):  # type: ignore[misc] # gunicorn has no types
    """The one worker process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # In the order in which they began to wait: the first has waited longest.
        self._fresh: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}
        self._buffered = 0
        self._stop_at: float | None = None
        self._swept = 0.0
        self.alive: bool = True

    def init_process(self) -> None:
        """Remember what the loop needs; runs after the fork."""
        self._server: Server = self.app.settings.server
        tls = self.app.settings.tls
        self._limits = Limits(self._server.max_body_bytes, tls.client_names)
        # Enough for many ordinary reviews beside a few of the largest.
        self._buffer_limit = 4 * self._server.max_body_bytes
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(hard, self._server.max_connections + _OTHER_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        super().init_process()

    @property
    def _runtime(self) -> Runtime:
        runtime: Runtime = self.app.runtime
        return runtime

    def handle_exit(self, _signal: int, _frame: Any) -> None:
        """Begin to drain. In a signal handler: only note the time and wake the loop."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._server.drain
            self.method_queue.defer(lambda: None)

    def run(self) -> None:
        """Loop until stopped, then finish what is under way."""
        self.poller.register(self.method_queue.fileno(), selectors.EVENT_READ, self.method_queue.run_callbacks)
        self.set_accept_enabled(True)
        event(logging.INFO, "serving", listen=str(self._server.listen), ops_listen=str(self._server.ops_listen or ""))
        draining = False
        while self._stop_at is None or time.monotonic() < self._stop_at:
            if self._stop_at is not None and not draining:
                draining = True
                self._start_draining()
            self._turn()
            if not self.alive or not self.is_parent_alive():
                break
        self.alive = False
        self.set_accept_enabled(False)
        self._finish()
        self.tpool.shutdown(wait=False)
        self._runtime.close()

    def _start_draining(self) -> None:
        event(logging.INFO, "stopping: requests are still taken for a while", seconds=self._server.drain)
        self._runtime.health.report("stopping", "the webhook is being stopped")
        # gunicorn answers with Connection: close when no more connections may be kept.
        self.max_keepalived = 0

    def _turn(self) -> None:
        self.notify()
        self.wait_for_and_dispatch_events(_SWEEP_SECONDS if self._fresh or self._stop_at else 1.0)
        now = time.monotonic()
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            self._expire(now)

    def _finish(self) -> None:
        """Answer what is under way; who is idle gets an orderly end (a client may retry after that)."""
        for conn in [conn for conn in self._known if conn.idle]:
            self._leave(conn)
            self._linger(conn)
        limit = time.monotonic() + _LINGER_SECONDS + self._server.read_timeout
        while self.nr_conns > 0 and time.monotonic() < limit:
            self._turn()

    def accept(self, listener: Any) -> None:
        """Take the connections that wait at a listener."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, client = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room()  # else the listener would be ready again and again
                return  # none waits, or it was gone again
            context = None
            if self.app.is_secure(listener.getsockname()):
                context = self._runtime.contexts.current
                if context is None:  # no certificate yet
                    sock.close()
                    continue
            if self.nr_conns >= self._server.max_connections:
                self._make_room()
            self.nr_conns += 1
            self._runtime.metrics.connections.set(self.nr_conns)
            conn = Connection(sock, client[:2], listener.getsockname()[:2], context, self._limits)
            self._wait(conn, time.monotonic() + self._server.read_timeout)

    def _make_room(self) -> None:
        oldest = next(iter(self._fresh), None) or next(iter(self._known), None)
        if oldest is not None:
            self._leave(oldest)
            self._drop(oldest, "limit")

    def _wait(self, conn: Connection, deadline: float) -> None:
        conn.deadline = deadline
        (self._known if conn.served else self._fresh)[conn] = None
        self.poller.register(conn.sock, conn.events, lambda _sock: self._readable(conn))

    def _leave(self, conn: Connection) -> None:
        self._fresh.pop(conn, None)
        self._known.pop(conn, None)
        with suppress(KeyError, ValueError, OSError):
            self.poller.unregister(conn.sock)

    def _readable(self, conn: Connection) -> None:
        if conn not in self._fresh and conn not in self._known:
            return  # closed by an earlier event of the same turn
        try:
            self._proceed(conn)
        except Exception:  # one connection's accident must not end the loop
            event(logging.ERROR, "connection failed", exc_info=True, client=conn.client[0])
            self._leave(conn)
            self._drop(conn)

    def _proceed(self, conn: Connection) -> None:
        was_idle, was_waiting_for, sock = conn.idle, conn.events, conn.sock
        before = len(conn.buffer)
        progress = conn.advance()
        self._buffered += len(conn.buffer) - before
        if progress is Progress.WAIT:
            if conn.sock is not sock or conn.events != was_waiting_for:
                # Wrapping in TLS made a new object for the same descriptor.
                self.poller.modify(conn.sock, conn.events, lambda _sock: self._readable(conn))
            if was_idle and not conn.idle and not conn.lingering:
                conn.deadline = time.monotonic() + self._server.read_timeout
            if self._buffered > self._buffer_limit:
                self._drop_largest()
            return
        self._leave(conn)
        if progress is Progress.REQUEST:
            self._submit(conn)
        elif progress is Progress.REFUSED:
            self._refuse(conn, *conn.refusal)
        else:
            self._drop(conn)

    def _submit(self, conn: Connection) -> None:
        before = len(conn.buffer)
        request = conn.take()
        self._buffered += len(conn.buffer) - before
        if len(request) <= _LARGE_BYTES:
            # Not blocking: an answer fits the socket's buffer, and who doesn't read answers loses the connection.
            self._answered(conn, self._answer(conn, request))
        else:
            conn.sock.settimeout(self._server.read_timeout)
            future = self.tpool.submit(self._answer, conn, request)
            future.add_done_callback(lambda done: self.method_queue.defer(self._answered, conn, _kept(done)))

    def _answer(self, conn: Connection, request: bytes) -> bool:
        """Answer one request. Returns whether the connection goes on."""
        try:
            req = next(http.get_parser(self.cfg, [request], conn.client))
            req.scheme = "https" if conn.secure else "http"
            return bool(self.handle_request(req, conn))
        except http.errors.ParseException as error:
            conn.refusal = (_PARSE_CODES.get(type(error), 400), "not a valid HTTP request")
        except (StopIteration, OSError):  # the answer could not be written
            pass
        except Exception:
            event(logging.ERROR, "request failed", exc_info=True)
            conn.refusal = (500, "internal error, see the webhook's log")
        return False

    def _answered(self, conn: Connection, keep: bool) -> None:
        conn.served += 1
        if conn.refusal[0]:
            self._refuse(conn, *conn.refusal)
            return
        if not keep:
            self._linger(conn)
            return
        conn.sock.setblocking(False)
        self._wait(conn, time.monotonic() + self._server.keepalive)
        if conn.has_more:
            # What came with the last request doesn't make the socket readable again; others have their turn first.
            self.method_queue.defer(self._readable, conn)

    def _refuse(self, conn: Connection, code: int, text: str) -> None:
        self._runtime.metrics.http_errors.labels(str(code)).inc()
        event(logging.WARNING, "request refused", code=code, detail=text, client=conn.client[0])
        conn.send_refusal(code, text)
        self._linger(conn)

    def _linger(self, conn: Connection) -> None:
        self._buffered -= len(conn.buffer)
        conn.linger()
        try:
            self._wait(conn, time.monotonic() + _LINGER_SECONDS)
        except (OSError, ValueError, KeyError):  # the client is gone already
            self._drop(conn)

    def _drop(self, conn: Connection, cause: str = "") -> None:
        if conn.closed:
            return
        if cause:
            self._runtime.metrics.connections_dropped.labels(cause).inc()
        self._fresh.pop(conn, None)
        self._known.pop(conn, None)
        self._buffered -= len(conn.buffer)
        self.nr_conns -= 1
        self._runtime.metrics.connections.set(self.nr_conns)
        conn.close()

    def _drop_largest(self) -> None:
        largest = max((*self._fresh, *self._known), key=lambda conn: len(conn.buffer))
        self._leave(largest)
        self._refuse(largest, 503, "too much is being sent at once")

    def _expire(self, now: float) -> None:
        late = [conn for conns in (self._fresh, self._known) for conn in conns if conn.deadline <= now]
        for conn in late:
            self._leave(conn)
            if conn.buffer and not conn.lingering:
                self._runtime.metrics.connections_dropped.labels("slow").inc()
                self._refuse(conn, 408, "the request took too long")
            else:
                self._drop(conn, "" if conn.lingering or conn.served else "slow")


def _kept(done: "Future[bool]") -> bool:
    return not done.cancelled() and done.exception() is None and done.result()
