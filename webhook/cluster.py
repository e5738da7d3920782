"""The API server: Secret, webhook configuration, labels of namespaces. The only module that imports kubernetes."""

import base64
import binascii
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kubernetes import client, config

from webhook import names
from webhook.config import Cluster
from webhook.health import Health
from webhook.keeper import ConflictError
from webhook.log import event

_TIMEOUT = (3.0, 10.0)
_WATCH_SECONDS = 300
_RETRY_SECONDS = 2.0
_CONFLICT, _NOT_FOUND = 409, 404
_LABELS = (names.POD_SECURITY_ENFORCE, names.NAMESPACE_LABEL)


class ClusterError(OSError):
    """The API server can't be reached or refuses: the message has no data of the object."""


def connect(where: Cluster) -> client.ApiClient:
    """Return a connection. Raises ClusterError where the credentials aren't there."""
    try:
        if where is Cluster.IN_CLUSTER:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config()  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise ClusterError(f"--cluster {where}: no credentials for the API server: {error}") from None
    return client.ApiClient()


class NotFoundError(ClusterError):
    """The object isn't there."""


def _call(what: str, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return the answer as plain JSON: the client's model objects are many times as large."""
    try:
        answer = function(*arguments, _request_timeout=_TIMEOUT, _preload_content=False)
        found: dict[str, Any] = json.loads(answer.data)
    except client.ApiException as error:
        if error.status == _CONFLICT:
            raise ConflictError(what) from None
        kind = NotFoundError if error.status == _NOT_FOUND else ClusterError
        raise kind(f"{what}: {error.status} {error.reason}") from None
    except Exception as error:  # the transport's own kinds
        raise ClusterError(f"{what}: {type(error).__name__}") from None
    return found


class KubernetesStore:
    """Secret and webhook configuration by their names: nothing else is read or written."""

    def __init__(self, api: client.ApiClient, namespace: str, secret: str, configuration: str) -> None:
        self._core = client.CoreV1Api(api)
        self._admission = client.AdmissionregistrationV1Api(api)
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration

    def read(self) -> tuple[dict[str, bytes], str] | None:
        """Return the Secret's data and its version."""
        what = f"reading Secret {self._secret}"
        try:
            secret = _call(what, self._core.read_namespaced_secret, self._secret, self._namespace)
        except NotFoundError:
            return None
        data = {key: _decode(value) for key, value in (secret.get("data") or {}).items()}
        return data, secret["metadata"]["resourceVersion"]

    def _body(self, data: dict[str, bytes], version: str | None) -> dict[str, Any]:
        metadata = {"name": self._secret, "namespace": self._namespace}
        if version is not None:
            metadata["resourceVersion"] = version
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}

    def create(self, data: dict[str, bytes]) -> None:
        """Make the Secret."""
        what = f"creating Secret {self._secret}"
        _call(what, self._core.create_namespaced_secret, self._namespace, self._body(data, None))

    def replace(self, data: dict[str, bytes], version: str) -> None:
        """Write the Secret's data, leaving labels, annotations and other keys as they are."""
        what = f"writing Secret {self._secret}"
        _call(what, self._core.patch_namespaced_secret, self._secret, self._namespace, self._body(data, version))

    def ca_bundles(self) -> tuple[list[bytes], str]:
        """Return the caBundle of each webhook."""
        what = f"reading MutatingWebhookConfiguration {self._configuration}"
        found = _call(what, self._admission.read_mutating_webhook_configuration, self._configuration)
        bundles = [_decode(webhook["clientConfig"].get("caBundle") or "") for webhook in found.get("webhooks") or []]
        if not bundles:
            raise ClusterError(f"{what}: it has no webhooks")
        return bundles, found["metadata"]["resourceVersion"]

    def set_ca_bundles(self, bundles: Sequence[bytes], version: str) -> None:
        """Write the caBundles. A JSON Patch, so that nothing else of the configuration is touched."""
        what = f"writing MutatingWebhookConfiguration {self._configuration}"
        patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        for index, pem in enumerate(bundles):
            value = base64.b64encode(pem).decode()
            patch.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value})
        _call(what, self._admission.patch_mutating_webhook_configuration, self._configuration, patch)


def _decode(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""  # as good as nothing: it is made again


class WatchedNamespaces:
    """The labels that decisions need, of all namespaces, kept current by a watch. Reviews read them from memory."""

    def __init__(self, api: client.ApiClient, health: Health) -> None:
        self._core = client.CoreV1Api(api)
        self._health = health
        self._health.report("namespaces", "their labels aren't known yet")
        self._labels: dict[str, dict[str, str]] = {}
        self._stop = threading.Event()

    def labels(self, name: str) -> dict[str, str] | None:
        """Return the labels, None for a namespace that isn't known (yet)."""
        return self._labels.get(name)

    def start(self) -> None:
        """List once, then watch in a thread."""
        threading.Thread(target=self._run, name="namespaces", daemon=True).start()

    def close(self) -> None:
        """Stop at the next event."""
        self._stop.set()

    def _run(self) -> None:
        complaint = ""
        while not self._stop.is_set():
            try:
                version = self._list()
                self._health.report("namespaces")  # from now on known, if perhaps not the newest
                complaint = ""
                while not self._stop.is_set():
                    version = self._watch(version)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if text != complaint:
                    event(logging.WARNING, "namespaces: watch interrupted", error=text)
                complaint = text
                self._stop.wait(_RETRY_SECONDS)

    def _list(self) -> str:
        listed = _call("listing namespaces", self._core.list_namespace)
        self._labels = {item["metadata"]["name"]: _relevant(item) for item in listed["items"]}
        return str(listed["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        answer: Any = self._core.list_namespace(
            watch=True,
            resource_version=version,
            timeout_seconds=_WATCH_SECONDS,
            allow_watch_bookmarks=True,
            _preload_content=False,
            _request_timeout=(_TIMEOUT[0], _WATCH_SECONDS + _TIMEOUT[1]),
        )
        try:
            for change in _lines(answer):
                kind, item = change["type"], change["object"]
                if kind == "ERROR":
                    raise ClusterError(f"watching namespaces: {item.get('code')} {item.get('reason')}")
                version = item["metadata"]["resourceVersion"]
                if kind in ("ADDED", "MODIFIED"):
                    self._labels[item["metadata"]["name"]] = _relevant(item)
                elif kind == "DELETED":
                    self._labels.pop(item["metadata"]["name"], None)
        finally:
            answer.release_conn()
        return version


def _lines(answer: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    for part in answer.stream(amt=None, decode_content=False):
        *lines, rest = (rest + part).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())


def _relevant(namespace: dict[str, Any]) -> dict[str, str]:
    labels = namespace["metadata"].get("labels") or {}
    return {key: labels[key] for key in _LABELS if key in labels}
