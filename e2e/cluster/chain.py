"""The whole chain on a node: KAI's part, the chart as an operator installs it, pods, and what the card really holds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import kai
from e2e.cluster.cluster import Cluster, Object
from e2e.cluster.node import SIMULATED
from e2e.cluster.release import CHART, NAME
from e2e.cluster.settings import NODE_NAME
from e2e.images.catalog import PROBE_IMAGE, REGISTRY, TAG

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30
CARD_MIB = 15360  # the simulated T4
VALUES = (
    f"global.imageRegistry={REGISTRY}",
    *(f"{component}.image.tag={TAG}" for component in ("webhook", "librarySync", "monitor")),
    "monitor.updateInterval=1",
)


@dataclass(frozen=True)
class Command:
    """What became of a command in a container."""

    status: int
    output: str  # standard output and standard error


class Chain:
    """Everything that the tests of a node share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        assert cluster.node is not None
        self.node = cluster.node

    def start_kai(self) -> None:
        """The node's GPU as the scheduler sees it, NVIDIA's RuntimeClass, and KAI Scheduler's part."""
        uuid = self.cards()[0]["uuid"]
        labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.memory": str(CARD_MIB), "simgpu/uuid": uuid}
        self.patch(f"/api/v1/nodes/{NODE_NAME}", {"metadata": {"labels": labels}})
        gpu = {"nvidia.com/gpu": "1"}
        self.patch(f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"capacity": gpu, "allocatable": gpu}})
        self.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kai.QUEUES)
        pki = self.cluster.pki
        files = [f"--kubeconfig={pki}/admin.kubeconfig", f"--certificate={pki}/kai.crt", f"--key={pki}/kai.key"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.cluster.spawn("kai", [sys.executable, "-m", "e2e.cluster.kai", *files], environment)
        configuration = kai.configuration((pki / "ca.crt").read_bytes())
        self.create("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration)

    def install(self, *values: str) -> str:
        """helm upgrade --install, and wait until all is ready: helm alone lets a DaemonSet's last node be behind."""
        command = ["upgrade", "--install", NAME, str(CHART), f"--namespace={NAME}", "--create-namespace"]
        settings = [f"--set={value}" for value in (*VALUES, *values)]
        output = self.cluster.helm(*command, *settings, "--reset-values", "--wait", "--timeout=300s")
        for component in ("libsync", "monitor"):
            name = f"daemonset/{NAME}-{component}"
            self.cluster.kubectl("rollout", "status", name, f"--namespace={NAME}", "--timeout=100s")
        return output

    def create(self, path: str, body: Object, user: str = "admin") -> Object:
        """Create an object; RuntimeError with the API server's sentence where it is refused."""
        status, answer = self.cluster.request("POST", path, body, user=user)
        if status not in (200, 201):
            raise RuntimeError(str(answer.get("message")))
        return answer

    def patch(self, path: str, body: Object) -> None:
        """Merge an object's fields."""
        headers = {"Content-Type": "application/merge-patch+json"}
        status, answer = self.cluster.request("PATCH", path, body, headers=headers)
        if status != 200:
            raise RuntimeError(str(answer.get("message")))

    def cards(self) -> list[dict[str, Any]]:
        """The card's truth."""
        command = [str(SIMULATED / "simgpu"), "truth", "--state", str(self.node.card / "state" / "state")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        cards: list[dict[str, Any]] = json.loads(done.stdout)["cards"]
        return cards

    def used_bytes(self) -> int:
        """What the card really holds."""
        return int(self.cards()[0]["used_bytes"])

    def start(self, pod: Object, phase: str = "Running", seconds: float = 60) -> "Pod":
        """Create a pod and wait for a phase."""
        made = Pod(self, pod["metadata"]["name"])
        made.delete()
        self.create(made.collection, pod)
        made.wait_for(phase, seconds)
        return made


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
        kubectl = [str(cluster.settings.programs / "kubectl"), f"--kubeconfig={cluster.kubeconfig}", "exec", self.name]
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
    run = list(command) or ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]
    pod: Object = {
        "metadata": {"name": name, "annotations": {"gpu-memory": "4096"}},
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
