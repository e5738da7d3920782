"""One client connection, read without ever blocking until a whole request is there.

A thread gets a request only when it is complete, so slow clients cost a socket and a buffer, never a thread. What
is looked at here is where the request ends; gunicorn's parser then judges the bytes, and has no more than these.
"""

import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

_HEAD_BYTES = 16 << 10
_RECEIVE_BYTES = 64 << 10
_SEND_BYTES = 128 << 10
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_CONTINUE = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)

REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Progress(Enum):
    """What became of reading."""

    WAIT = auto()
    REQUEST = auto()
    REFUSED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may ask for. `client_names`: common names let in by mutual TLS, empty for all."""

    body_bytes: int
    client_names: tuple[str, ...] = ()


class Connection:
    """A socket and what was read of it. `events` is what it waits for, `deadline` (monotonic) until when."""

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        server: tuple[str, int],
        context: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        sock.setblocking(False)
        # Room for a whole answer, so that writing one never has to wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self.sock = sock
        self.client = client
        self.server = server
        self.secure = context is not None
        self.served = 0
        self.events = EVENT_READ
        self.deadline = 0.0
        self.lingering = False
        self.closed = False
        self.refusal = (0, "")
        self.buffer = bytearray()
        self._context = context
        self._handshaken = context is None
        self._limits = limits
        self._head = 0
        self._needed = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of a next request came yet."""
        return self._handshaken and not self.buffer

    @property
    def has_more(self) -> bool:
        """Whether something of the next request was read already, here or inside TLS."""
        return bool(self.buffer) or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0)

    def advance(self) -> Progress:
        """Read what is there. REQUEST: `take` has it; REFUSED: `refusal` says with what."""
        self.events = EVENT_READ
        try:
            if self.lingering:
                return self._discard()
            if not self._handshaken:
                self._handshake()
            while not self._complete():
                if self.refusal[0]:
                    return Progress.REFUSED
                data = self.sock.recv(_RECEIVE_BYTES)
                if not data:
                    return Progress.CLOSED
                self.buffer += data
        except (ssl.SSLWantReadError, BlockingIOError):
            return Progress.WAIT
        except ssl.SSLWantWriteError:
            self.events = EVENT_WRITE
            return Progress.WAIT
        except (OSError, ValueError):  # SSLError is an OSError; a handshake with garbage can raise ValueError
            return Progress.CLOSED
        return Progress.REFUSED if self.refusal[0] else Progress.REQUEST

    def _handshake(self) -> None:
        if not isinstance(self.sock, ssl.SSLSocket):
            assert self._context is not None  # noqa: S101 (only secure connections have a handshake to do)
            self.sock = self._context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
        self.sock.do_handshake()
        self._handshaken = True
        if self._limits.client_names and _common_name(self.sock) not in self._limits.client_names:
            self.refusal = (403, "the client certificate's common name is not let in")

    def _complete(self) -> bool:
        if not self._needed:
            self._find_end()
        return self._needed > 0 and len(self.buffer) >= self._needed

    def _find_end(self) -> None:
        # Only the last three bytes seen can begin the blank line that the next read completes.
        end = self.buffer.find(b"\r\n\r\n", max(0, self._head - 3), _HEAD_BYTES)
        self._head = len(self.buffer)
        if end < 0:
            if len(self.buffer) > _HEAD_BYTES:
                self._refuse(431, "the header fields are too large")
            return
        head = bytes(self.buffer[: end + 4])
        if _CHUNKED.search(head):
            self._refuse(411, "send the body with Content-Length")
            return
        length = max((int(found) for found in _LENGTH.findall(head)), default=0)
        if length > self._limits.body_bytes:
            self._refuse(413, f"the body is larger than {self._limits.body_bytes} bytes")
            return
        self._needed = end + 4 + length
        if len(self.buffer) < self._needed and _CONTINUE.search(head):
            self.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, code: int, text: str) -> None:
        if not self.refusal[0]:
            self.refusal = (code, text)

    def take(self) -> bytes:
        """Return the complete request; what was read beyond it stays for the next."""
        request = bytes(self.buffer[: self._needed])
        del self.buffer[: self._needed]
        self._head = self._needed = 0
        return request

    def send_refusal(self, code: int, text: str) -> None:
        """Write a short answer without waiting, and stop writing."""
        body = f'{{"error":"{text}"}}\n'
        head = f"HTTP/1.1 {code} {REASONS[code]}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        with suppress(OSError):
            self.sock.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def linger(self) -> None:
        """Say goodbye but keep reading: closing with unread bytes would reset the connection and lose the answer."""
        self.lingering = True
        self.buffer = bytearray()
        with suppress(OSError, ValueError):
            self.sock.setblocking(False)
            if isinstance(self.sock, ssl.SSLSocket) and self._handshaken:
                with suppress(ssl.SSLWantReadError):
                    self.sock.unwrap()
            self.sock.shutdown(socket.SHUT_WR)

    def _discard(self) -> Progress:
        while self.sock.recv(_RECEIVE_BYTES):
            pass
        return Progress.CLOSED

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        with suppress(OSError):
            self.sock.close()


def _common_name(sock: ssl.SSLSocket) -> str:
    certificate: Any = sock.getpeercert() or {}
    attributes = [pair for group in certificate.get("subject", ()) for pair in group]
    return next((str(value) for key, value in attributes if key == "commonName"), "")
