"""gunicorn as a library: one worker process whose threads answer; scaled by replicas."""

import logging
import ssl
from pathlib import Path
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from gunicorn.errors import AppImportError

from webhook.config import Settings, SettingsError

# Beyond the drain time: what the requests under way may still take before the worker is killed.
_GRACE_SECONDS = 10
# For the worker's heartbeat: on a disk it would stall with the disk.
_MEMORY = Path("/dev/shm")  # noqa: S108


class Log(glogging.Logger):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's own records go the way of all others; requests are logged by the application."""

    def setup(self, _cfg: Any) -> None:
        """Let the root's handler render them."""
        self.error_log.propagate = True
        # Its notes about starting would name the addresses as http: TLS is ours, not its.
        self.error_log.setLevel(logging.WARNING)

    def access(self, *_arguments: Any) -> None:
        """Log nothing: a review's line says more."""


class Application(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """Our WSGI application under gunicorn's arbiter."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn's options. Nothing is read from its own files or environment."""
        server = self.settings.server
        addresses = [server.listen, server.ops_listen] if server.ops_listen else [server.listen]
        options = {
            "bind": [str(address) for address in addresses],
            "worker_class": "webhook.worker.ReviewWorker",
            "workers": 1,
            "threads": server.threads,
            "worker_connections": server.max_connections,
            "keepalive": max(1, int(server.keepalive)),
            "timeout": 30,
            "graceful_timeout": int(server.drain) + _GRACE_SECONDS,
            "limit_request_field_size": 4096,
            "limit_request_fields": 64,
            "logger_class": Log,
            "control_socket_disable": True,
            "worker_tmp_dir": str(_MEMORY) if _MEMORY.is_dir() else None,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def is_secure(self, address: tuple[Any, ...]) -> bool:
        """Return whether a listener's address is the one that speaks TLS."""
        ops = self.settings.server.ops_listen
        return ops is None or address[1] != ops.port

    def load(self) -> Any:
        """Return the WSGI application; runs in the worker. The master imports nothing of it, which keeps it small."""
        from webhook.app import create_app  # noqa: PLC0415
        from webhook.endpoint import Services  # noqa: PLC0415
        from webhook.runtime import Runtime  # noqa: PLC0415

        try:
            self.runtime = Runtime(self.settings)
        except OSError as error:  # no credentials for the API server: nothing that a new worker could mend
            raise AppImportError(f"webhook: {error}") from None
        self.runtime.start()
        services = Services(self.settings.rules, self.runtime.namespaces, self.runtime.metrics, self.runtime.health)
        return create_app(services, self.settings.server.max_body_bytes)


def check_files(settings: Settings) -> None:
    """Raise SettingsError where the certificate's files can't be used: better now than at the first connection."""
    tls = settings.tls
    for flag, path in (("--tls-cert", tls.tls_cert), ("--tls-key", tls.tls_key), ("--client-ca", tls.client_ca)):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise SettingsError(f"{flag}: {path} can't be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if tls.tls_cert is not None:
            context.load_cert_chain(tls.tls_cert, tls.tls_key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
    except ssl.SSLError as error:
        raise SettingsError(f"--tls-cert, --tls-key, --client-ca: not usable PEM files: {error.reason}") from None


def serve(settings: Settings) -> None:
    """Serve until SIGTERM. Raises SettingsError."""
    check_files(settings)
    Application(settings).run()
