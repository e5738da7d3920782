"""The whole chain on a Node: libsync's files, the webhook, KAI's part, the monitor, and pods that went through them."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from e2e.onebox import kai
from e2e.onebox.admission import Admission, make_certificate
from e2e.onebox.node import ROOT, Node
from e2e.onebox.pod import Pod, pid_namespace

MONITOR_PORT = 9394
CARD_LABEL_MIB = 15360  # the node's label nvidia.com/gpu.memory, for a T4


class ChainError(Exception):
    """A part of the chain didn't start; the text holds the end of what it said."""


class Chain:
    """Use as a context manager around nothing but itself: it owns its Node."""

    def __init__(self, cards: tuple[str, ...] = ("T4",)) -> None:
        self._stack = ExitStack()
        self.node = Node(cards)
        self.library = ROOT / "build"  # what libsync brings to the node
        self.pods: list[Pod] = []
        self.admission: Admission
        self.monitor_url = ""

    def __enter__(self) -> "Chain":
        self._stack.enter_context(self.node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pods_file(self) -> Path:
        """What the monitor reads in place of the API server's list of this node's pods."""
        return self.node.directory / "pods.json"

    def prepare_node(self) -> str:
        """Have libsync fill the node's directory, or change it to another library; what it said."""
        command = [sys.executable, "-m", "libsync", "--target", str(self.node.library_base)]
        done = subprocess.run(
            [*command, "--library", str(self.library), "--once"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ChainError(f"libsync: {done.stderr}")
        return done.stderr

    def start_webhook(self) -> Admission:
        """Start our webhook under TLS and return the API server's side of it."""
        certificate, key = make_certificate(self.node.directory)
        port = free_port()
        address = f"127.0.0.1:{port}"
        self._start("webhook", "--listen", address, "--tls-cert", str(certificate), "--tls-key", str(key),
                    "--library-base", str(self.node.library_base), "--drain", "0s")  # fmt: skip
        self.admission = Admission(f"https://{address}/mutate", certificate)
        return self.admission

    def start_monitor(self) -> str:
        """Start the monitor on its usual port, or another one where that is taken; its URL."""
        self.write_pods_file()
        port = MONITOR_PORT if is_free(MONITOR_PORT) else free_port()
        self._start("monitor", "--listen", f"127.0.0.1:{port}", "--kubelet-root", str(self.node.kubelet_root),
                    "--pods-file", str(self.pods_file), "--interval", "0.5", "--grace", "1")  # fmt: skip
        self.monitor_url = f"http://127.0.0.1:{port}/metrics"
        return self.monitor_url

    def monitor_top(self) -> str:
        """The monitor's picture for the terminal."""
        url = self.monitor_url.replace("/metrics", "/evidence")
        command = [sys.executable, "-m", "monitor", "top", "--once", "--url", url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChainError(f"monitor top: {done.stderr}")
        return done.stdout

    def admit(self, manifest: Mapping[str, Any], label_mib: int | None = CARD_LABEL_MIB) -> Pod:
        """Send a pod through admission and binding to the node; it isn't started yet."""
        return self.bind(self.admission.create(manifest), label_mib)

    def bind(self, manifest: Mapping[str, Any], label_mib: int | None = CARD_LABEL_MIB) -> Pod:
        """Bind a pod that the API server has: KAI's ConfigMaps appear, and kubelet knows of it."""
        config_maps: dict[str, dict[str, str]] = {"kube-root-ca.crt": {"ca.crt": ""}}
        if kai.wants_share(manifest):
            config_maps |= kai.bind(manifest, label_mib, str(self.node.truth()[0]["uuid"]))
        manifest["spec"].setdefault("nodeName", self.node.name)
        pod = Pod(self.node, manifest, config_maps)
        self.pods.append(pod)
        return pod

    def run(self, manifest: Mapping[str, Any], label_mib: int | None = CARD_LABEL_MIB) -> Pod:
        """Admit, bind and start a pod."""
        pod = self.admit(manifest, label_mib).start()
        self.write_pods_file()
        return pod

    def delete(self, pod: Pod) -> None:
        """Remove a pod from the node and from the list."""
        pod.delete()
        self.pods.remove(pod)
        self.write_pods_file()

    def held_bytes(self, pod: Pod) -> int:
        """What the processes of a pod hold, as the cards themselves say."""
        return sum(process["used_bytes"] for process in self.processes(pod))

    def processes(self, pod: Pod) -> list[dict[str, Any]]:
        """The processes of a pod that hold memory of a card, as the simulator lists them; `pid` is the host's."""
        namespaces = {one.pid_namespace for one in pod.containers if one.is_running()}
        listed = (process for card in self.node.truth() for process in card["processes"])
        return [process for process in listed if pid_namespace(process["pid"]) in namespaces]

    def write_pods_file(self) -> None:
        """Write the node's pods as a v1 PodList, whole or not at all."""
        items = [
            {"apiVersion": "v1", "kind": "Pod", **pod.manifest, "status": {"phase": "Running"}} for pod in self.pods
        ]
        temporary = self.pods_file.with_suffix(".new")
        temporary.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": items}))
        temporary.rename(self.pods_file)

    def _start(self, part: str, *arguments: str) -> None:
        """Start a part and wait until it says that it serves (its port alone might be another program's)."""
        log_path = self.node.directory / f"{part}.log"
        with log_path.open("wb") as log:
            process = self.node.spawn([sys.executable, "-m", part, *arguments], self.node.driver_env(), log)
        end = time.monotonic() + 30
        while "serving" not in (said := log_path.read_text()):
            if process.poll() is not None or time.monotonic() > end:
                raise ChainError(f"{part} {' '.join(arguments[:2])} doesn't serve; it said:\n{said[-2000:]}")
            time.sleep(0.05)


def load_manifest(path: Path = ROOT / "e2e" / "quickstart.yaml", **metadata: Any) -> dict[str, Any]:
    """A pod's YAML, with some of its metadata replaced."""
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    manifest["metadata"] |= metadata
    return manifest


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether nobody answers on a local port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0
