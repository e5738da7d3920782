"""The cluster as tests use it: an API server alone, or a whole node with it."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from types import TracebackType

from e2e.cluster import control, pki
from e2e.cluster.client import Client, Object, decode, finish
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.node import Node
from e2e.cluster.settings import NODE_IP, NODE_NAME, Settings

JANITOR = Path(__file__).with_name("janitor.py")


class Cluster(Client):
    """etcd and kube-apiserver, with `node=True` also controllers, scheduler, kube-proxy, containerd and kubelet.

    A context manager; inside, `kubectl`, `helm`, `request` and `spawn` reach it. Nothing of it outlives the context.
    """

    def __init__(self, settings: Settings, node: bool, images: Sequence[Path] = ()) -> None:
        """`images`: archives that the node's containerd gets before the kubelet starts."""
        super().__init__(settings)
        self._images = images
        self._stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="kri-e2e-"))
        self.pki = self.folder / "pki"
        self.node = Node(self.folder / "node", self.pki, settings.programs) if node else None
        memory = self.folder / "etcd"
        preparation = [
            f"ip address add {NODE_IP}/32 dev lo",  # a node needs an address that isn't 127.x; it leads nowhere
            "ip route add default dev lo",  # Service addresses must have a route before iptables turns them elsewhere
            f"mkdir -m 700 {memory} && mount -t tmpfs -o mode=700 etcd {memory}",
            *(self.node.preparation() if self.node else []),
        ]
        self.namespaces = Namespaces(preparation)
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        command = [sys.executable, "-I", "-S", str(JANITOR), str(self.folder)]
        janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._stack.callback(janitor.communicate)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for program in self._programs.values():
            program.wait()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; `pki/<user>.kubeconfig` are the others'."""
        return self.pki / "admin.kubeconfig"

    def _start(self) -> None:
        programs = self.settings.programs
        pki.make_all(self.pki)
        if self.node:
            self.node.prepare()
        self._stack.enter_context(self.namespaces)
        self.spawn("etcd", control.etcd(self.folder / "etcd"))
        self.spawn("kube-apiserver", control.api_server(programs, self.pki))
        if self.node:
            self.run(self.node.create_card())
            self.spawn("card", self.node.serve_card())
            self.spawn("containerd", self.node.containerd())
        self.wait("the API server is ready", self._is_ready, 60)
        if self.node:
            self.spawn("kube-controller-manager", control.controller_manager(programs, self.pki))
            self.spawn("kube-scheduler", control.scheduler(programs, self.pki))
            self.spawn("kube-proxy", control.kube_proxy(programs, self.pki))
            self.wait("containerd answers", lambda: self.run(self.node_ctr("version"), check=False).returncode == 0, 30)
            for image in self._images:
                self.load_image(image)
            self.spawn("kubelet", self.node.kubelet())
            self.wait("the node is ready", self._node_is_ready, 120)

    def load_image(self, archive: Path) -> None:
        """Give the node an image, as a pull from a registry would."""
        self.run(self.node_ctr("images", "import", str(archive)))

    def node_ctr(self, *arguments: str) -> list[str]:
        """containerd's client, on the node."""
        assert self.node is not None, "this cluster has no node"
        return self.node.ctr(*arguments)

    def run(
        self, arguments: Sequence[str], check: bool = True, stdin: str = "", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside and wait for it; its output in the error where it fails."""
        done = subprocess.run(
            self.namespaces.command(arguments),
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            # All our clusters have one address, by which kubectl and helm would mistake one's kinds for another's.
            env=os.environ | {"KUBECACHEDIR": str(self.folder / "discovery")},
        )
        return finish(arguments, done, check)

    def spawn(self, name: str, arguments: Sequence[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program inside; what it writes is in `logs/<name>.log`."""
        path = self.log(name)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as log:
            self._programs[name] = self.namespaces.spawn(arguments, log, env)
        return self._programs[name]

    def stop(self, name: str, seconds: float = 30) -> int:
        """End a program that was started by `spawn` with SIGTERM, and wait; its exit status."""
        program = self._programs.pop(name)
        if program.poll() is not None:
            return program.returncode
        pid = (Path("/proc") / str(program.pid) / "task" / str(program.pid) / "children").read_text().split()
        os.kill(int(pid[0]), signal.SIGTERM)  # nsenter's child: nsenter itself passes no signals on
        return program.wait(seconds)

    def listens(self, host: str, port: int) -> bool:
        """Whether a TCP port of the inside takes connections."""
        try:
            self.namespaces.connect(host, port).close()
        except OSError:
            return False
        return True

    def log(self, name: str) -> Path:
        """The log of a program that was started by `spawn`."""
        return self.folder / "logs" / f"{name}.log"

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        user: str = "admin",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Object]:
        """One request to the API server: HTTP status and the object it answers (a Status where it refuses)."""
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        connection = _Connection(self.namespaces, NODE_IP, 6443, context)
        with contextlib.closing(connection):
            content = None if body is None else json.dumps(body)
            sent = {"Authorization": f"Bearer {self._token(user)}", "Content-Type": "application/json"}
            connection.request(method, path, content, sent | dict(headers or {}))
            response: HTTPResponse = connection.getresponse()
            raw = response.read()
            answer = decode(raw)
            warnings = response.headers.get_all("Warning") or []
            if warnings:
                answer["httpWarnings"] = warnings
            return response.status, answer

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            for name in ("etcd", "kube-apiserver"):
                if self._programs[name].poll() is not None:
                    raise RuntimeError(f"{name} ended\n{self.ends_of_logs()}") from None
            return False

    def _node_is_ready(self) -> bool:
        status, node = self.request("GET", f"/api/v1/nodes/{NODE_NAME}")
        conditions = node.get("status", {}).get("conditions", []) if status == 200 else []
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _token(self, user: str) -> str:
        config = json.loads((self.pki / f"{user}.kubeconfig").read_text())
        return str(config["users"][0]["user"]["token"])

    def ends_of_logs(self) -> str:
        """The last lines of each program that was started."""
        ends = []
        for path in sorted((self.folder / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-5:]
            ends.append(f"--- {path.name}\n" + "\n".join(line[:400] for line in lines))
        return "\n".join(ends)


class _Connection(HTTPSConnection):
    """HTTPS to an address inside the namespaces."""

    def __init__(self, namespaces: Namespaces, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=60, context=context)
        self._namespaces = namespaces
        self._tls = context

    def connect(self) -> None:
        self.sock = self._tls.wrap_socket(self._namespaces.connect(self.host, self.port), server_hostname=self.host)
