"""A cluster that somebody brings along, by KUBECONFIG: KAI Scheduler and the chart are installed there already."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import urllib3
from kubernetes import client, config

from e2e.cluster.client import Client, Object, decode, finish
from e2e.cluster.release import NAME
from e2e.cluster.settings import Settings


class ForeignCluster(Client):
    """Reached as kubectl reaches it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        config.load_kube_config(config_file=str(self.kubeconfig))  # type: ignore[no-untyped-call]
        self._api = client.ApiClient()

    @property
    def kubeconfig(self) -> Path:
        """What KUBECONFIG names."""
        return Path(self.settings.foreign_kubeconfig)

    def run(
        self, arguments: Sequence[str], check: bool = True, stdin: str = "", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this machine."""
        done = subprocess.run(arguments, check=False, input=stdin, capture_output=True, text=True, timeout=timeout)
        return finish(arguments, done, check)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        user: str = "admin",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Object]:
        """One request with the kubeconfig's credentials; there are no other users here."""
        assert user == "admin", "other users' credentials aren't known"
        sent = {"Content-Type": "application/json"}
        token = self._api.configuration.auth_settings().get("BearerToken")
        if token is not None:  # client certificates are the connection's own
            sent["Authorization"] = token["value"]
        pool: urllib3.PoolManager = self._api.rest_client.pool_manager
        content = None if body is None else json.dumps(body)
        url = self._api.configuration.host + path
        response = pool.request(method, url, body=content, headers=sent | dict(headers or {}), timeout=60)
        return response.status, decode(response.data)


def reason_to_skip(cluster: ForeignCluster) -> str:
    """Why nothing can be tested there; nothing if it can."""
    nodes = cluster.get("/api/v1/nodes")["items"]
    if not any(node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") != "0" for node in nodes):
        return "no node of the cluster offers nvidia.com/gpu"
    if cluster.request("GET", "/apis/scheduling.run.ai")[0] != 200:
        return "KAI Scheduler isn't installed there (no API group scheduling.run.ai)"
    if cluster.request("GET", f"/apis/apps/v1/namespaces/{NAME}/daemonsets/{NAME}-libsync")[0] != 200:
        return f"the chart isn't installed there as release {NAME} in namespace {NAME}"
    return ""
