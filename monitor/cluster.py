"""This node's pods by list and watch from the API server, and Events on them."""

import logging
import queue
import random
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from monitor.apiserver import ApiError, ApiServer
from monitor.evidence import Row
from monitor.pods import Pod, from_object, living

log = logging.getLogger(__name__)
PODS = "/api/v1/pods"
WATCH_SECONDS = 240
SILENCE_SECONDS = 120  # bookmarks come about every minute
ANSWER_SECONDS = 30
EVENT_SECONDS = 5
FIRST_LIST_SECONDS = 1.5
RETRY_SECONDS = (1.0, 30.0)
MAX_WAITING_EVENTS = 100
GONE = 410
ANY_VERSION, NEWEST_VERSION = "0", ""  # of a list: from the API server's memory, or asked of etcd


class ClusterPods:
    """The pods of one node, kept up to date by a thread."""

    def __init__(self, api: ApiServer, node_name: str) -> None:
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self._node = node_name
        self._pods: dict[str, Pod] = {}
        self._keys: dict[str, str] = {}  # the object's own uid -> the uid that the node knows it by
        self._listed = threading.Event()
        self._problem: str | None = "the API server has not answered yet"
        threading.Thread(target=self._run, name="pods-watch", daemon=True).start()

    def events(self) -> "ClusterEvents":
        """A sink for Events by the same API server."""
        return ClusterEvents(self._api, self._node)

    def read(self) -> Mapping[str, Pod]:
        """Give the pods as they are known now. Raises OSError while the API server doesn't answer."""
        self._listed.wait(FIRST_LIST_SECONDS)
        if self._problem is not None:
            raise OSError(self._problem)
        return dict(self._pods)

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        since = ANY_VERSION
        while True:
            try:
                version = self._list(since)
                pause = RETRY_SECONDS[0]
                while True:
                    version = self._watch(version)
            except Exception as e:
                if isinstance(e, ApiError) and e.code == GONE:
                    since = NEWEST_VERSION
                    continue
                self._problem = f"{type(e).__name__}: {e}"
                log.debug("watch", exc_info=True)
                threading.Event().wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 (spreads the nodes' retries)
                pause = min(pause * 2, RETRY_SECONDS[1])

    def _list(self, since: str) -> str:
        query = {"fieldSelector": self._selector} | ({"resourceVersion": since} if since else {})
        data = self._api.get(PODS, query, ANSWER_SECONDS)
        self._pods, self._keys = {}, {}
        for item in data.get("items") or ():
            self._apply("ADDED", item)
        self._problem = None
        self._listed.set()
        return str(data["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        query = {
            "fieldSelector": self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        for change in self._api.watch(PODS, query, SILENCE_SECONDS):
            item = change["object"]
            if change["type"] == "ERROR":
                raise ApiError(item.get("code", 0), str(item.get("message")))
            version = item["metadata"]["resourceVersion"]
            self._apply(change["type"], item)
        return version

    def _apply(self, kind: str, item: Mapping[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        pods = dict(self._pods)  # readers hold the mapping that they were given
        own = item["metadata"]["uid"]
        if (known := self._keys.pop(own, None)) is not None:
            pods.pop(known, None)
        if kind != "DELETED" and living(item):
            pod = from_object(item)
            pods[pod.uid] = pod
            self._keys[own] = pod.uid
        self._pods = pods


class ClusterEvents:
    """Writes Events from a thread of its own: an API server that is slow must not hold up an update."""

    def __init__(self, api: ApiServer, node_name: str) -> None:
        self._api = api
        self._node = node_name
        self._waiting: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(MAX_WAITING_EVENTS)
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def write(self, row: Row, reason: str, message: str) -> None:
        """Put it in line. Raises OSError if the line is full."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{row.pod[:200]}.", "namespace": row.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": row.namespace,
                "name": row.pod,
                "uid": row.pod_uid,
                "fieldPath": f"spec.containers{{{row.container}}}",
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "kai-resource-isolator-monitor", "host": self._node},
        }
        try:
            self._waiting.put_nowait((row.namespace, body))
        except queue.Full:
            raise OSError("too many are waiting for the API server") from None

    def _run(self) -> None:
        while True:
            namespace, body = self._waiting.get()
            try:
                self._api.post(f"/api/v1/namespaces/{namespace}/events", body, EVENT_SECONDS)
            except Exception as e:
                log.warning("event on %s/%s: %s", namespace, body["involvedObject"]["name"], e)
