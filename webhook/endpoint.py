"""`POST /mutate` as plain WSGI, in front of the Flask application that serves everything else.

A review is the one request that a whole cluster waits for: routing, request and context objects of the framework would
cost it as much again as reading and deciding do.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from webhook import reasons, review
from webhook.config import Rules
from webhook.health import Health
from webhook.log import event
from webhook.metrics import Metrics
from webhook.pod import MalformedObjectError, Pod
from webhook.policy import Decision, Namespaces, decide

PATH = "/mutate"
# Parsing takes many times a body's size: large ones are read one at a time.
_LARGE_BYTES = 256 << 10
_LARGE = threading.Lock()

Environ = dict[str, Any]
WsgiApplication = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class RequestRefusedError(Exception):
    """The request isn't answered with a review: HTTP code and a short text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Services:
    """What the HTTP side uses of the rest."""

    rules: Rules
    namespaces: Namespaces
    metrics: Metrics
    health: Health


@dataclass(frozen=True, slots=True)
class ReviewEndpoint:
    """Answers reviews itself and hands every other path on."""

    services: Services
    max_body_bytes: int
    otherwise: WsgiApplication

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        if environ.get("PATH_INFO") != PATH:
            return self.otherwise(environ, start_response)
        code, headers = 200, [("Content-Type", "application/json")]
        try:
            content = self._answer(environ).encode()
        except RequestRefusedError as refused:
            code = refused.code
            content = refuse(self.services.metrics, code, refused.text, PATH).encode()
            if code == HTTPStatus.METHOD_NOT_ALLOWED:
                headers.append(("Allow", "POST"))
        headers.append(("Content-Length", str(len(content))))
        start_response(f"{code} {HTTPStatus(code).phrase}", headers)
        return [content]

    def _answer(self, environ: Environ) -> str:
        """Return the review that answers the one in the body. Raises RequestRefusedError."""
        body = self._body(environ)
        started = time.perf_counter()
        wanted = None
        try:
            wanted = _read(body)
            decision = self._decide(wanted)
            answer = review.render(wanted.uid, decision)
        except (review.BadRequestError, MalformedObjectError) as error:
            raise RequestRefusedError(400, str(error)) from None
        except Exception:
            event(logging.ERROR, "review failed", exc_info=True, **(_subject(wanted) if wanted else {}))
            raise RequestRefusedError(500, "internal error, see the webhook's log") from None
        seconds = time.perf_counter() - started
        self.services.metrics.reviewed(decision, seconds)
        _log_review(wanted, decision, seconds)
        return answer

    def _body(self, environ: Environ) -> bytes:
        if environ["wsgi.url_scheme"] != "https":
            raise RequestRefusedError(403, "reviews are taken over TLS only")
        if environ["REQUEST_METHOD"] != "POST":
            raise RequestRefusedError(405, "reviews are posted")
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestRefusedError(415, "the body must be application/json")
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > self.max_body_bytes:
            raise RequestRefusedError(413, f"the body is larger than {self.max_body_bytes} bytes")
        body: bytes = environ["wsgi.input"].read(length)
        return body

    def _decide(self, wanted: review.Request) -> Decision:
        if not wanted.creates_pod:
            return Decision(reasons.NOT_A_CREATION)
        pod = Pod.read(wanted.object)
        return decide(pod, wanted.namespace, self.services.rules, self.services.namespaces)


def refuse(metrics: Metrics, code: int, text: str, path: str) -> str:
    """Count and log a refusal; return its body."""
    metrics.http_errors.labels(str(code)).inc()
    event(logging.WARNING, "request refused", code=code, detail=text, path=path)
    return review.encode({"error": text}) + "\n"


def _read(body: bytes) -> review.Request:
    if len(body) <= _LARGE_BYTES:
        return review.parse(body)
    with _LARGE:
        return review.parse(body)


def _subject(wanted: review.Request) -> dict[str, str]:
    return {"uid": wanted.uid, "namespace": wanted.namespace, "name": wanted.pod_name, "owner": wanted.owner}


def _log_review(wanted: review.Request, decision: Decision, seconds: float) -> None:
    fields: dict[str, Any] = {
        **_subject(wanted),
        "decision": decision.reason.outcome.value,
        "reason": decision.reason.code,
        "ms": round(seconds * 1000, 3),
    }
    if decision.container:
        fields["container"] = decision.container
    if decision.message:
        fields["detail"] = decision.message
    if decision.warnings:
        fields["warnings"] = [warned.reason.code for warned in decision.warnings]
    if wanted.dry_run:
        fields["dry_run"] = True
    event(logging.INFO, "review", **fields)
