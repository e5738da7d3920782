"""The HTTP side: `POST /mutate`, `/healthz`, `/readyz`, `/metrics`. Every error is a short JSON object."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from webhook import reasons, review
from webhook.config import Rules
from webhook.health import Health
from webhook.log import event
from webhook.metrics import Metrics
from webhook.pod import MalformedObjectError, Pod
from webhook.policy import Decision, Namespaces, decide

# Parsing takes many times a body's size: large ones are read one at a time.
_LARGE_BYTES = 256 << 10
_LARGE = threading.Lock()


@dataclass(frozen=True, slots=True)
class Services:
    """What the application uses of the rest."""

    rules: Rules
    namespaces: Namespaces
    metrics: Metrics
    health: Health


def create_app(services: Services, max_body_bytes: int) -> Flask:
    """Return the WSGI application."""
    app = Flask("webhook", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes

    @app.post("/mutate")
    def mutate() -> Response | tuple[Response, int]:
        if request.scheme != "https":
            return _error(services, 403, "reviews are taken over TLS only")
        if request.mimetype != "application/json":
            return _error(services, 415, "the body must be application/json")
        started = time.perf_counter()
        wanted = None
        try:
            wanted = _read(request.get_data(cache=False))
            decision = _decide(services, wanted)
            answer = review.render(wanted.uid, decision)
        except (review.BadRequestError, MalformedObjectError) as error:
            return _error(services, 400, str(error))
        except Exception:
            event(logging.ERROR, "review failed", exc_info=True, **(_subject(wanted) if wanted else {}))
            return _error(services, 500, "internal error, see the webhook's log")
        seconds = time.perf_counter() - started
        services.metrics.reviewed(decision, seconds)
        _log_review(wanted, decision, seconds)
        return Response(answer, mimetype="application/json")

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        complaints = services.health.complaints()
        page = "".join(f"{name}: {text}\n" for name, text in sorted(complaints.items())) or "ok\n"
        return Response(page, status=503 if complaints else 200, mimetype="text/plain")

    @app.get("/metrics")
    def metrics() -> Response:
        services.metrics.ready.set(not services.health.complaints())
        return Response(services.metrics.render(), content_type="text/plain; version=0.0.4; charset=utf-8")

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> tuple[Response, int]:
        answer, code = _error(services, error.code or 500, error.name)
        allow = dict(error.get_headers()).get("Allow")
        if allow:
            answer.headers["Allow"] = allow
        return answer, code

    @app.errorhandler(Exception)
    def unexpected(_error_: Exception) -> tuple[Response, int]:
        event(logging.ERROR, "unexpected error", exc_info=True, path=request.path)
        return _error(services, 500, "internal error, see the webhook's log")

    return app


def _read(body: bytes) -> review.Request:
    if len(body) <= _LARGE_BYTES:
        return review.parse(body)
    with _LARGE:
        return review.parse(body)


def _decide(services: Services, wanted: review.Request) -> Decision:
    if not wanted.creates_pod:
        return Decision(reasons.NOT_A_CREATION)
    return decide(Pod.read(wanted.object), wanted.namespace, services.rules, services.namespaces)


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


def _error(services: Services, code: int, text: str) -> tuple[Response, int]:
    services.metrics.http_errors.labels(str(code)).inc()
    event(logging.WARNING, "request refused", code=code, detail=text, path=request.path)
    return jsonify({"error": text}), code
