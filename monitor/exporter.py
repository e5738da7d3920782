"""The exporter: the process that serves HTTP. It opens no tenant's file: the reader, behind two pipes, does."""

import json
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from monitor import __version__, config, metrics
from monitor.apiserver import ApiServer
from monitor.cluster import ClusterPods
from monitor.config import Settings
from monitor.events import Events, Sink
from monitor.exposition import CONTENT_TYPE
from monitor.joiner import Joiner
from monitor.nvml import Nvml
from monitor.picture import picture
from monitor.pipe import ReaderPipe
from monitor.podfile import PodFile
from monitor.pods import PodSource
from monitor.quota import MIB
from monitor.region import READABLE_ABIS
from monitor.updater import Updater

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 32
CONNECTION_SECONDS = 10


class Server(socketserver.ThreadingTCPServer):
    """HTTP with a bounded number of connections, each of a bounded length.

    Not http.server's own: that asks the DNS for the host's name before it listens, and where the DNS is slow or gone
    the node would be without metrics for as long.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], pages: dict[str, Callable[[], tuple[int, str, bytes]]]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its thread, if there is room; else close it."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away; nobody else is concerned."""
        log.debug("%s: %s", client_address, sys.exc_info()[1])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    timeout = CONNECTION_SECONDS
    disable_nagle_algorithm = True  # or a page waits 40 ms for the client's word that it has the headers
    protocol_version = "HTTP/1.1"
    server_version = "kai-isolator-monitor"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with one of the server's pages."""
        assert isinstance(self.server, Server)  # noqa: S101 (for the type checker)
        page = self.server.pages.get(self.path.partition("?")[0])
        status, kind, body = page() if page else (404, "text/plain", b"/metrics, /evidence and /healthz are here\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (the base class's name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log requests when asked for."""
        log.debug("%s: " + format, self.address_string(), *args)


def pages(updater: Updater, settings: Settings) -> dict[str, Callable[[], tuple[int, str, bytes]]]:
    """Name what is served."""
    late = 3 * settings.deadline  # nvml, pods and reader may each use theirs up

    def page() -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE, metrics.render(updater.fresh(late), settings.legacy_metrics)

    def evidence() -> tuple[int, str, bytes]:
        body = json.dumps(picture(updater.fresh(late)), indent=1).encode()
        return 200, "application/json", body + b"\n"

    def health() -> tuple[int, str, bytes]:
        # A source that fails is no reason to be restarted or not to be scraped: that is what source_up is for.
        age, limit = updater.age(), 3 * (settings.interval + late)
        if age is None:
            return 503, "text/plain", b"no update has ended yet\n"
        if age > limit:
            return 503, "text/plain", b"no update has ended for %d s, the log says why\n" % age
        return 200, "text/plain", b"ok\n"

    return {"/metrics": page, "/evidence": evidence, "/healthz": health}


def _pods(settings: Settings) -> tuple[PodSource | None, Sink | None]:
    if settings.pods_file:
        return PodFile(settings.pods_file), None
    if not settings.api_server:
        return None, None
    pods = ClusterPods(ApiServer(settings.api_server), settings.node_name)
    return pods, pods.events() if settings.events else None


def build(settings: Settings, reader: ReaderPipe) -> Updater:
    """Put the parts together."""
    pods, sink = _pods(settings)
    return Updater(
        reader=reader,
        cards=Nvml(),
        pods=pods,
        joiner=Joiner(settings.grace, settings.slack_mib * MIB),
        announcer=Events(sink, time.monotonic),
        deadline=settings.deadline,
        version=__version__,
        abi=max(READABLE_ABIS),
    )


def main(arguments: Sequence[str]) -> int:
    """Serve until the reader goes. The first two arguments are the pipes to it."""
    settings = config.parse(arguments[2:])
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    reader = ReaderPipe(os.fdopen(int(arguments[0]), "wb"), os.fdopen(int(arguments[1]), "rb"))
    updater = build(settings, reader)
    try:
        server = Server((settings.host, settings.port), pages(updater, settings))
    except OSError as e:
        log.error("can't listen on %s port %d: %s", settings.host, settings.port, e.strerror)  # noqa: TRY400
        return 1
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    log.info("serving http://%s:%d/metrics", *server.server_address[:2])
    while True:
        updater.fresh(3 * settings.deadline)
        if reader.wait_gone(settings.interval):
            return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
