"""The chart on an API server without a node: helm installs it, the webhook's replicas are programs of the checkout.

They run with the arguments that the chart gives them and as the chart's ServiceAccount, behind the chart's Service:
the API server sees what it sees in a cluster.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.client import Object
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import API_SERVER, NODE_IP

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "chart"
NAME = "kai-resource-isolator"  # of release, namespace and so of every object's beginning
FIRST_PORT = 18443


class Release:
    """The chart's release in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._replicas: dict[int, str] = {}

    def install(self, *arguments: str) -> str:
        """Install or upgrade to these values (helm would keep the last ones where none are given); helm's output."""
        target = [
            "upgrade",
            "--install",
            NAME,
            str(CHART),
            f"--namespace={NAME}",
            "--create-namespace",
            "--reset-values",
        ]
        return self.cluster.helm(*target, *arguments)

    def uninstall(self) -> None:
        """Stop the replicas and remove the release."""
        for port in list(self._replicas):
            self.stop_replica(port)
        self.cluster.helm("uninstall", NAME, f"--namespace={NAME}", "--ignore-not-found")
        if self.cluster.node is None:  # no controller empties and ends a deleted namespace
            name = f"{NAME}-test"
            self.cluster.request("PUT", f"/api/v1/namespaces/{name}/finalize", {"metadata": {"name": name}, "spec": {}})

    def start_replicas(self, count: int, *arguments: str) -> list[int]:
        """Start programs of the webhook with further arguments; their ports, once all are ready."""
        kubeconfig = self._kubeconfig()
        ports = [FIRST_PORT + 2 * len(self._replicas) + 2 * number for number in range(count)]
        for port in ports:
            own = [*self._arguments(), f"--listen={NODE_IP}:{port}", f"--ops-listen={NODE_IP}:{port + 1}"]
            # (Nobody waits for the end of the drain: a replica that stops is out of the Service by then.)
            own += ["--cluster=kubeconfig", "--drain=200ms"]
            command = [sys.executable, "-m", "webhook", *own, *arguments]
            environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
            self._replicas[port] = f"webhook-{port}"
            self.cluster.spawn(self._replicas[port], command, environment)
        for port in ports:
            self.cluster.wait(f"webhook {port} is ready", lambda port=port: self.is_ready(port), 30)  # type: ignore[misc]
        self.publish()
        return ports

    def stop_replica(self, port: int) -> None:
        """Take a replica out of the Service, then end it as the kubelet does: SIGTERM, and wait."""
        name = self._replicas.pop(port)
        self.publish()
        self.cluster.stop(name)

    def is_ready(self, port: int) -> bool:
        """What the readiness probe would say."""
        done = self.cluster.run(
            [sys.executable, "-c", _PROBE, f"http://{NODE_IP}:{port + 1}/readyz"], check=False, timeout=20
        )
        return done.returncode == 0

    def publish(self) -> None:
        """Make the Service lead to the replicas, one EndpointSlice for each: one address, several ports."""
        namespace = f"/apis/discovery.k8s.io/v1/namespaces/{NAME}/endpointslices"
        self.cluster.request("DELETE", namespace)
        for port in self._replicas:
            body: Object = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"webhook-{port}", "labels": {"kubernetes.io/service-name": f"{NAME}-webhook"}},
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
            }
            status, answer = self.cluster.request("POST", namespace, body)
            assert status == 201, answer

    def _arguments(self) -> list[str]:
        """The container's arguments in the release, without those about where it runs."""
        deployment = self.cluster.get(f"/apis/apps/v1/namespaces/{NAME}/deployments/{NAME}-webhook")
        arguments: Sequence[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        replaced = ("--listen=", "--ops-listen=", "--cluster=")
        return [argument for argument in arguments if not argument.startswith(replaced)]

    def _kubeconfig(self) -> Path:
        """A kubeconfig of the chart's ServiceAccount: the replicas may do what its roles say, and no more."""
        path = f"/api/v1/namespaces/{NAME}/serviceaccounts/{NAME}-webhook/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        status, answer = self.cluster.request("POST", path, request)
        assert status == 201, answer
        config = json.loads(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = answer["status"]["token"]
        assert config["clusters"][0]["cluster"]["server"] == API_SERVER
        file = self.cluster.folder / "webhook.kubeconfig"
        file.write_text(json.dumps(config))
        return file


_PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
