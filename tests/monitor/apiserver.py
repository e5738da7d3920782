"""An API server of one node's pods that can be told to misbehave."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


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

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.http.server_address[1]}"
