"""The Flask application: `/healthz`, `/readyz`, `/metrics`, and the reviews' endpoint in front of them.

Every error is a short JSON object.
"""

import logging

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from webhook.endpoint import ReviewEndpoint, Services, refuse
from webhook.log import event


def create_app(services: Services, max_body_bytes: int) -> Flask:
    """Return the WSGI application."""
    app = Flask("webhook", static_folder=None)

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
    def http_error(error: HTTPException) -> Response:
        code = error.code or 500
        content = refuse(services.metrics, code, error.name, request.path)
        allow = {name: value for name, value in error.get_headers() if name == "Allow"}
        return Response(content, code, allow, mimetype="application/json")

    @app.errorhandler(Exception)
    def unexpected(_error: Exception) -> Response:
        event(logging.ERROR, "unexpected error", exc_info=True, path=request.path)
        content = refuse(services.metrics, 500, "internal error, see the webhook's log", request.path)
        return Response(content, 500, mimetype="application/json")

    app.wsgi_app = ReviewEndpoint(services, max_body_bytes, app.wsgi_app)  # type: ignore[method-assign]
    return app
