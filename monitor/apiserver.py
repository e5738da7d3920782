"""Requests to the API server with the pod's service account.

The client library `kubernetes` would do as well, were it not for its size: `python -m tests.monitor.bench` with 100
containers measured 101 MiB for both processes with release 37 of it (its CoreV1Api alone loads 40 MiB), 58 MiB with
this; a node may spend 80.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_ANSWER_BYTES = 256 << 20
ERRORS_FROM = 400


class ApiError(Exception):
    """The API server refused; `code` is HTTP's or that of a watch's last word."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ApiServer:
    """One API server. `url` is http or https; the token is read anew for each request, since it is renewed."""

    def __init__(self, url: str, account: Path = SERVICE_ACCOUNT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not the address of an API server")
        self._host, self._port = parts.hostname, parts.port
        self._token = account / "token"
        authority = account / "ca.crt"
        self._tls = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)

    def get(self, path: str, query: Mapping[str, str], seconds: float) -> Any:
        """Fetch an object. Raises OSError, ValueError, ApiError."""
        return self._whole("GET", path, query, None, seconds)

    def post(self, path: str, body: Mapping[str, Any], seconds: float) -> Any:
        """Create an object. Raises OSError, ValueError, ApiError."""
        return self._whole("POST", path, {}, body, seconds)

    def watch(self, path: str, query: Mapping[str, str], silence_seconds: float) -> Iterator[Any]:
        """Follow changes until the server ends it. Raises as `get` does; TimeoutError after so long a silence."""
        with closing(self._connect(silence_seconds)) as connection:
            response = self._ask(connection, "GET", path, {**query, "watch": "true"}, None)
            try:
                while line := response.readline():
                    yield json.loads(line)
            except HTTPException as e:
                raise OSError(f"the watch broke off: {e!r}") from e

    def _whole(self, method: str, path: str, query: Mapping[str, str], body: Any, seconds: float) -> Any:
        with closing(self._connect(seconds)) as connection:
            try:
                return json.loads(self._ask(connection, method, path, query, body).read(MAX_ANSWER_BYTES))
            except HTTPException as e:
                raise OSError(f"{path}: {e!r}") from e

    def _connect(self, seconds: float) -> HTTPConnection:
        if self._tls:
            return HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)
        return HTTPConnection(self._host, self._port, timeout=seconds)

    def _ask(
        self, connection: HTTPConnection, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> HTTPResponse:
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "kai-isolator-monitor",
        }
        if self._tls and self._token.exists():
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
        except HTTPException as e:
            raise OSError(f"{path}: {e!r}") from e
        if response.status >= ERRORS_FROM:
            text = response.read(4096).decode(errors="replace")
            raise ApiError(response.status, message_of(text) or response.reason)
        return response


def message_of(text: str) -> str:
    """The sentence in a Status object, empty for anything else."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return ""
