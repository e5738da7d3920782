"""The whole chain on a node: KAI's part, the chart as an operator installs it, pods, and what the card really holds."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import kai
from e2e.cluster.client import Client, Object
from e2e.cluster.cluster import Cluster
from e2e.cluster.foreign import ForeignCluster
from e2e.cluster.node import SIMULATED, Node
from e2e.cluster.release import CHART, NAME
from e2e.cluster.settings import NODE_IP, NODE_NAME
from e2e.images.catalog import PROBE_IMAGE, REGISTRY, TAG
from e2e.onebox import kai as kai_rules

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30
CARD_MIB = 15360  # the simulated T4
REPLICAS = 2
VALUES = (
    f"global.imageRegistry={REGISTRY}",
    *(f"{component}.image.tag={TAG}" for component in ("webhook", "librarySync", "monitor")),
    "monitor.updateInterval=1",
    "monitor.env[0].name=KRI_MONITOR_GRACE",
    "monitor.env[0].value=3.0",
)


@dataclass(frozen=True)
class Command:
    """What became of a command in a container."""

    status: int
    output: str  # standard output and standard error


class Chain:
    """Everything that the tests of a node share. What only a simulated card can tell skips the test elsewhere."""

    def __init__(self, cluster: Client) -> None:
        self.cluster = cluster
        self._started: list[Pod] = []
        self.image = PROBE_IMAGE
        if isinstance(cluster, ForeignCluster):
            libsync = cluster.get(f"/apis/apps/v1/namespaces/{NAME}/daemonsets/{NAME}-libsync")
            self.image = libsync["spec"]["template"]["spec"]["containers"][0]["image"]  # it has the probe in it

    @property
    def own(self) -> Cluster:
        """The cluster whose nodes, images and releases the test may change."""
        if not isinstance(self.cluster, Cluster):
            pytest.skip("it changes node or release, which only a cluster of the test's own allows")
        return self.cluster

    @property
    def node(self) -> Node:
        """Its node."""
        assert self.own.node is not None
        return self.own.node

    def card_mib(self) -> int:
        """The card's size as the scheduler sees it: the smallest, where cards differ."""
        nodes = self.cluster.get("/api/v1/nodes")["items"]
        return min(int(node["metadata"]["labels"].get("nvidia.com/gpu.memory", 1 << 30)) for node in nodes)

    def limit_mib(self, memory_mib: int = 4096) -> int:
        """What KAI makes of a share on that card."""
        card = self.card_mib()
        return card * round(kai_rules.share({"gpu-memory": str(memory_mib)}, card) * 100) // 100

    def start_kai(self) -> None:
        """The node's GPU as the scheduler sees it, NVIDIA's RuntimeClass, and KAI Scheduler's part."""
        uuid = self.cards()[0]["uuid"]
        labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.memory": str(CARD_MIB), "simgpu/uuid": uuid}
        self.patch(f"/api/v1/nodes/{NODE_NAME}", {"metadata": {"labels": labels}})
        gpu = {"nvidia.com/gpu": "1"}
        self.patch(f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"capacity": gpu, "allocatable": gpu}})
        self.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kai.QUEUES)
        pki = self.own.pki
        files = [f"--kubeconfig={pki}/admin.kubeconfig", f"--certificate={pki}/kai.crt", f"--key={pki}/kai.key"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.own.spawn("kai", [sys.executable, "-m", "e2e.cluster.kai", *files], environment)
        self.own.wait("KAI's webhook listens", lambda: self.own.listens(NODE_IP, kai.PORT), 60)
        configuration = kai.configuration((pki / "ca.crt").read_bytes())
        self.create("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration)

    def install(self, *values: str) -> str:
        """helm upgrade --install, and wait until all is as it says.

        helm alone lets a DaemonSet's last node be behind, and old replicas of the webhook answer.
        """
        command = ["upgrade", "--install", NAME, str(CHART), f"--namespace={NAME}", "--create-namespace"]
        settings = [f"--set={value}" for value in (*VALUES, *values)]
        output = self.own.helm(*command, *settings, "--reset-values", "--wait", "--timeout=300s")
        for component in ("libsync", "monitor"):
            name = f"daemonset/{NAME}-{component}"
            self.cluster.kubectl("rollout", "status", name, f"--namespace={NAME}", "--timeout=100s")
        self.cluster.wait("old replicas are gone", lambda: len(self._replicas()) == REPLICAS, 60)
        return output

    def _replicas(self) -> list[Object]:
        selector = f"app.kubernetes.io/instance%3D{NAME},app.kubernetes.io/component%3Dwebhook"
        found: list[Object] = self.cluster.get(f"/api/v1/namespaces/{NAME}/pods?labelSelector={selector}")["items"]
        return found

    def create(self, path: str, body: Object, user: str = "admin") -> Object:
        """Create an object; RuntimeError with the API server's sentence where it is refused."""
        status, answer = self.cluster.request("POST", path, body, user=user)
        if status not in (200, 201):
            raise RuntimeError(str(answer.get("message")))
        return answer

    def patch(self, path: str, body: Object) -> None:
        """Merge the fields of an object of our own cluster."""
        headers = {"Content-Type": "application/merge-patch+json"}
        status, answer = self.own.request("PATCH", path, body, headers=headers)
        if status != 200:
            raise RuntimeError(str(answer.get("message")))

    def cards(self) -> list[dict[str, Any]]:
        """The card's truth."""
        command = [str(SIMULATED / "simgpu"), "truth", "--state", str(self.node.card / "state" / "state")]
        cards: list[dict[str, Any]] = json.loads(self.own.run(command).stdout)["cards"]
        return cards

    def used_bytes(self) -> int:
        """What the card really holds."""
        return int(self.cards()[0]["used_bytes"])

    def start(self, pod: Object, phase: str = "Running", seconds: float = 60) -> "Pod":
        """Create a pod and wait for a phase."""
        made = Pod(self, pod["metadata"]["name"])
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])):
            container["image"] = self.image
        made.delete()
        self._started.append(made)
        self.create(made.collection, pod)
        made.wait_for(phase, seconds)
        return made

    def remove_pods(self) -> None:
        """End what a test started and left: the next one finds the card empty, if perhaps some objects still there."""
        for pod in self._started:
            self.cluster.request("DELETE", pod.path)
        if isinstance(self.cluster, Cluster):
            self.cluster.wait("the card is empty", lambda: self.cards()[0]["processes"] == [], 60)
        else:
            for pod in self._started:
                pod.delete()
        self._started.clear()


class Pod:
    """A pod of namespace default."""

    collection = "/api/v1/namespaces/default/pods"

    def __init__(self, chain: Chain, name: str) -> None:
        self._chain = chain
        self.name = name
        self.path = f"{self.collection}/{name}"

    def get(self) -> Object:
        """The object; empty when there is none."""
        status, pod = self._chain.cluster.request("GET", self.path)
        return pod if status == 200 else {}

    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed; empty when there is none."""
        return str(self.get().get("status", {}).get("phase", ""))

    def wait_for(self, phase: str, seconds: float = 60) -> float:
        """Wait for a phase; how long it took. RuntimeError says what the events say."""

        def is_there() -> bool:
            found = self.phase()
            if found in ("Failed", "Succeeded") and found != phase:
                raise RuntimeError(f"it ended: {found}")
            return found == phase

        try:
            return self._chain.cluster.wait(f"{self.name} is {phase}", is_there, seconds)
        except RuntimeError as error:
            raise RuntimeError(f"{self.name} is {self.phase()}: {self.events()}\n{self.log()}\n{error}") from None

    def events(self) -> str:
        """What the events say."""
        answer = self._chain.cluster.get(
            f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{self.name}"
        )
        return "; ".join(f"{event['reason']}: {event['message']}" for event in answer["items"])

    def log(self, container: str = "") -> str:
        """What a container printed."""
        return self._chain.cluster.kubectl("logs", self.name, *([f"-c={container}"] if container else []), check=False)

    def wait_for_log(self, text: str, container: str = "", seconds: float = 30) -> str:
        """Wait until a container has printed something; all of it."""
        self._chain.cluster.wait(f"{self.name} prints {text!r}", lambda: text in self.log(container), seconds, 0.3)
        return self.log(container)

    def run(self, *command: str, container: str = "") -> Command:
        """kubectl exec."""
        cluster = self._chain.cluster
        kubectl = [cluster.settings.tool("kubectl"), f"--kubeconfig={cluster.kubeconfig}", "exec", self.name]
        done = cluster.run([*kubectl, *([f"-c={container}"] if container else []), "--", *command], check=False)
        return Command(done.returncode, done.stdout + done.stderr)

    def delete(self, seconds: float = 60) -> float:
        """Delete it and wait until it is gone; how long that took."""
        self._chain.cluster.request("DELETE", self.path)
        return self._chain.cluster.wait(f"{self.name} is gone", lambda: not self.get(), seconds)


def quick_start(name: str = "quick-start") -> Object:
    """README's pod."""
    pod: Object = yaml.safe_load((ROOT / "e2e" / "quickstart.yaml").read_text())
    pod["metadata"]["name"] = name
    return pod


def sleeper(name: str, change: Callable[[Object], None] | None = None, command: Sequence[str] = ()) -> Object:
    """A pod with the quick start's share that does nothing of its own, or what `command` says; `change` edits it."""
    run = list(command) or ["sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
    pod: Object = {
        "metadata": {
            "name": name,
            "labels": {"kai.scheduler/queue": "default-queue"},
            "annotations": {"gpu-memory": "4096"},
        },
        "spec": {
            "schedulerName": "kai-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": PROBE_IMAGE, "command": run}],
        },
    }
    if change is not None:
        change(pod)
    return pod


def eventually(claim: str, true: Callable[[], bool], seconds: float = 15) -> None:
    """Wait for something to hold that comes by itself; AssertionError where it never does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"never: {claim}"
        time.sleep(0.1)
