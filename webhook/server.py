"""gunicorn as a library: one worker process whose threads answer; scaled by replicas."""

from typing import Any

from gunicorn.app.base import BaseApplication

from webhook.config import Settings

# Beyond the drain time: what the requests under way may still take before the worker is killed.
_GRACE_SECONDS = 10


class Application(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """Our WSGI application under gunicorn's arbiter."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn's options. Nothing is read from its own files or environment."""
        server, tls = self._settings.server, self._settings.tls
        options = {
            "bind": [str(server.listen)],
            "worker_class": "gthread",
            "workers": 1,
            "threads": server.threads,
            "certfile": str(tls.tls_cert),
            "keyfile": str(tls.tls_key),
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return the application; runs in the worker."""
        from webhook.app import Services, create_app  # noqa: PLC0415
        from webhook.health import Health  # noqa: PLC0415
        from webhook.metrics import Metrics  # noqa: PLC0415

        class Unknown:
            def labels(self, name: str, *, fresh: bool = False) -> dict[str, str] | None:
                return None

        services = Services(self._settings.rules, Unknown(), Metrics(), Health())
        return create_app(services, self._settings.server.max_body_bytes)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM."""
    Application(settings).run()
