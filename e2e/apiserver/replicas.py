"""Replicas of the webhook beside an API server, with the chart's configuration, Service and least privileges.

There is no kubelet: replicas are processes in the cluster's network, and what the endpoint controller would do for
their pods is done here, one EndpointSlice a replica.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from subprocess import Popen
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import API_SERVER, NODE_IP

RELEASE = NAMESPACE = "kai-resource-isolator"
NAME = f"{RELEASE}-webhook"
SECRET = f"{NAME}-tls"
CONFIGURATION = f"{RELEASE}-mutating"
CONFIGURATION_PATH = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
SECRET_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
CHART = Path(__file__).parents[2] / "chart"
TEMPLATES = ("serviceaccount", "role", "service", "mutatingwebhookconfiguration")
TENANTS = "team"
START_SECONDS = 60


@dataclass
class Replica:
    """One process of the webhook."""

    name: str
    port: int
    process: Popen[bytes]

    @property
    def ops_port(self) -> int:
        """Port of /readyz and /metrics."""
        return self.port + 1


class Release:
    """The webhook's part of the chart, installed. Replicas come and go by `start` and `stop`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._count = 0
        self.replicas: list[Replica] = []
        for namespace in (NAMESPACE, TENANTS):
            self.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": namespace}})
        self.create(f"/api/v1/namespaces/{TENANTS}/serviceaccounts", {"metadata": {"name": "default"}})
        self.install({})

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object; nothing happens where it is there."""
        status, answer = self.cluster.request("POST", path, body)
        if status not in (201, 409):
            raise RuntimeError(f"POST {path}: {status} {answer.get('message')}")

    def install(self, values: Mapping[str, str]) -> None:
        """Apply the chart's templates of the webhook; the Service has no selector, since there are no pods."""
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        shown = [part for name in TEMPLATES for part in ("--show-only", f"templates/webhook-{name}.yaml")]
        manifest = self.cluster.helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *sets, *shown)
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
        remove = json.dumps([{"op": "replace", "path": "/spec/selector", "value": None}])
        self.cluster.kubectl("patch", "service", NAME, "--namespace", NAMESPACE, "--type=json", "--patch", remove)

    def kubeconfig(self) -> Path:
        """Credentials of the chart's service account: no more rights than the chart gives."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
        _, answer = self.cluster.request("POST", path, {"spec": {"expirationSeconds": 7200}})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": API_SERVER, "certificate-authority": f"{self.cluster.pki}/ca.crt"}}
            ],
            "users": [{"name": "u", "user": {"token": answer["status"]["token"]}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file = self.cluster.folder / "webhook.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def start(self, *flags: str, ready: bool = True) -> Replica:
        """Start a replica; its endpoint is added once it says that it is ready."""
        self._count += 1
        name, port = f"webhook-{self._count}", 20000 + 2 * self._count
        command = [
            *(sys.executable, "-m", "webhook", f"--listen={NODE_IP}:{port}", f"--ops-listen={NODE_IP}:{port + 1}"),
            *("--cluster=kubeconfig", f"--tls-secret={SECRET}", f"--namespace={NAMESPACE}", f"--service={NAME}"),
            *(f"--webhook-configuration={CONFIGURATION}", "--certificate-check=200ms", "--drain=200ms", *flags),
        ]
        env = {"KUBECONFIG": str(self.kubeconfig()), "PATH": "/usr/bin:/bin"}
        replica = Replica(name, port, self.cluster.spawn(name, command, env))
        self.replicas.append(replica)
        if ready:
            self.wait_ready(replica)
        return replica

    def wait_ready(self, replica: Replica) -> None:
        """Wait for /readyz as the kubelet does, then add the endpoint as the endpoint controller does."""
        self.cluster.wait(f"{replica.name} is ready", lambda: self.page(replica, "/readyz")[0] == 200, START_SECONDS)
        endpoint = {
            "metadata": {"name": replica.name, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": replica.port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
        }
        self.create(SLICES, endpoint)

    def page(self, replica: Replica, path: str) -> tuple[int, str]:
        """One page of a replica's plain port; status 0 where it doesn't answer."""
        connection = HTTPConnection(NODE_IP, replica.ops_port, timeout=10)
        try:
            connection.sock = self.cluster.namespaces.connect(NODE_IP, replica.ops_port, timeout_seconds=10)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def metric(self, replica: Replica, start: str) -> float:
        """Sum of the samples whose line begins so."""
        lines = self.page(replica, "/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    def stop(self, replica: Replica) -> int:
        """What a rollout does to a pod: SIGTERM, and its endpoint goes at the same time. Returns the exit status."""
        self._end(replica)
        return replica.process.wait(timeout=60)

    def _end(self, replica: Replica) -> None:
        self.cluster.run(["kill", "-TERM", str(self._pid(replica))])
        self.cluster.request("DELETE", f"{SLICES}/{replica.name}")
        self.replicas.remove(replica)

    def _pid(self, replica: Replica) -> int:
        found = self.cluster.run(["pgrep", "--full", "--oldest", f"listen={NODE_IP}:{replica.port}"])
        return int(found.stdout)

    def stop_all(self) -> None:
        """Stop every replica, and wait until the API server has seen that they went: it calls none any more."""
        ending = list(self.replicas)
        for replica in ending:
            self._end(replica)
        for replica in ending:
            replica.process.wait(timeout=60)
        self.cluster.wait("the API server knows of no replica", self._is_deserted, START_SECONDS)

    def _is_deserted(self) -> bool:
        return "no endpoints available" in str(self.post(SHARE)[1].get("message"))

    @contextlib.contextmanager
    def serving(self, *flags: str) -> Iterator[Replica]:
        """One replica, reached by the API server when entered, gone when left."""
        replica = self.start(*flags)
        try:
            self.wait_reached()
            yield replica
        finally:
            self.stop_all()

    def wait_reached(self) -> None:
        """Wait until the API server has seen endpoint and caBundle: it reads both by watches."""
        self.cluster.wait("the API server reaches the webhook", lambda: self.post(SHARE)[0] == 201, START_SECONDS)

    def post(
        self, pod: Mapping[str, Any], dry_run: bool = True, namespace: str = TENANTS
    ) -> tuple[int, dict[str, Any]]:
        """Create a pod: HTTP status, and the pod as it would be stored or the refusal."""
        path = f"/api/v1/namespaces/{namespace}/pods" + ("?dryRun=All" if dry_run else "")
        return self.cluster.request("POST", path, dict(pod))


SHARE: dict[str, Any] = {
    "metadata": {"generateName": "share-", "annotations": {"gpu-memory": "4096"}},
    "spec": {"containers": [{"name": "main", "image": "registry.example/cuda:12"}]},
}
ORDINARY: dict[str, Any] = {
    "metadata": {"generateName": "ordinary-"},
    "spec": {"containers": [{"name": "main", "image": "registry.example/cuda:12"}]},
}
