"""A pod on the node: its volumes, and its containers, started as a runtime would from nothing but the pod's spec."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.onebox import environment
from e2e.onebox.node import ContainerError, Node
from e2e.onebox.sandbox import Mount, Spec
from e2e.onebox.volumes import Volumes

_NO_DRIVER = ("", "void", "none")


@dataclass(frozen=True)
class Finished:
    """Outcome of a command."""

    status: int
    output: str
    errors: str


class Container:
    """One container: started, restarted, entered, killed. `pid` is its first process, as the host counts."""

    def __init__(self, pod: "Pod", spec: Mapping[str, Any]) -> None:
        self._pod = pod
        self.name: str = spec["name"]
        self._spec = spec
        self._directory = pod.directory / "containers" / self.name
        self._directory.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.restarts = -1

    def start(self) -> None:
        """Start it for the first time or again, with the environment and mounts of this moment."""
        self.restarts += 1
        root = self._directory / f"root-{self.restarts}"
        root.mkdir()
        with (self._directory / "log").open("ab") as log:
            self._process, self.pid = self._pod.node.run_in_sandbox(self._sandbox_spec(root), log)

    def restart(self) -> None:
        """Kill it if it still runs, and start it again in the same pod."""
        self.kill()
        self.start()

    @property
    def pid_namespace(self) -> str:
        """Name of the namespace that all its processes, also those that were started by exec, live in."""
        return pid_namespace(self.pid)

    def is_running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; the exit status, 128 + number for a signal."""
        assert self._process is not None, f"container {self.name} was never started"
        return self._process.wait(timeout=seconds)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to its first process, if it runs; wait for the end of it if it can't be refused."""
        if not self.is_running():
            return
        with suppress(ProcessLookupError):  # it may be ending by itself just now
            os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait()

    def logs(self) -> str:
        """What it wrote to stdout and stderr, over all its starts."""
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_log(self, text: str, seconds: float = 30) -> str:
        """Wait until the log holds a text; the log. The limit only ends a run that failed."""
        end = time.monotonic() + seconds
        while text not in (log := self.logs()):
            if not self.is_running() and text not in self.logs():
                raise ContainerError(f"{self._pod.name}/{self.name} ended without saying {text!r}; it said:\n{log}")
            if time.monotonic() > end:
                raise ContainerError(f"{self._pod.name}/{self.name} never said {text!r}; it said:\n{log}")
            time.sleep(0.02)
        return log

    def exec(self, *argv: str, env: Mapping[str, str] | None = None, seconds: float = 60) -> Finished:
        """Run a command in the container (kubectl exec), with the container's environment or just the one given."""
        process = self.exec_start(*argv, env=env)
        output, errors = process.communicate(timeout=seconds)
        return Finished(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))

    def exec_start(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """As exec, but leaves the command running; its pid is that of the process between."""
        if not self.is_running():
            raise ContainerError(f"container {self.name} isn't running")
        spec = self._sandbox_spec(Path(), list(argv), dict(env) if env is not None else None)
        return self._pod.node.run_in_sandbox(spec, subprocess.PIPE)[0]

    def _sandbox_spec(self, root: Path, argv: list[str] | None = None, env: dict[str, str] | None = None) -> Spec:
        pod, spec = self._pod, self._spec
        context = (pod.spec.get("securityContext") or {}) | (spec.get("securityContext") or {})
        full_env = environment.resolve(spec, pod.manifest, pod.config_maps)
        group = context.get("fsGroup")
        return Spec(
            argv=argv if argv is not None else self._command(full_env),
            env=env if env is not None else full_env,
            node_pid=pod.node.pid,
            cwd=spec.get("workingDir", "/"),
            uid=context.get("runAsUser", 0),
            gid=context.get("runAsGroup", 0),
            groups=[*context.get("supplementalGroups", []), *([group] if group is not None else [])],
            join=self.pid if argv is not None else 0,
            hostname=pod.name[:63],
            root=str(root),
            etc=str(pod.node.directory / "image" / "etc"),
            mounts=[*self._mounts(full_env)] if argv is None else [],
            read_only_root=bool(context.get("readOnlyRootFilesystem")),
            privileged=bool(context.get("privileged")),
            no_new_privileges=context.get("allowPrivilegeEscalation") is False,
        )

    def _command(self, env: Mapping[str, str]) -> list[str]:
        words = [*self._spec.get("command", []), *self._spec.get("args", [])]
        if not words:
            raise ContainerError(f"container {self.name} names no command, and this runner's image has none")
        return [environment.expand(word, env) for word in words]

    def _mounts(self, env: Mapping[str, str]) -> list[Mount]:
        mounts = self._pod.node.image_mounts(with_driver=env.get("NVIDIA_VISIBLE_DEVICES", "all") not in _NO_DRIVER)
        for mount in self._spec.get("volumeMounts", []):
            source = self._pod.volumes.sources[mount["name"]]
            sub_path = mount.get("subPath") or environment.expand(mount.get("subPathExpr", ""), env)
            if sub_path:
                source = self._pod.volumes.sub_path(mount["name"], sub_path)
            mounts.append(Mount(str(source), os.path.normpath(mount["mountPath"]), bool(mount.get("readOnly"))))
        return mounts


class Pod:
    """A pod that was bound to the node. `manifest` is a v1 Pod as the API server would hand it to kubelet."""

    def __init__(self, node: Node, manifest: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]) -> None:
        self.node = node
        self.manifest = manifest
        self.config_maps = config_maps
        self.spec: Mapping[str, Any] = manifest["spec"]
        self.name: str = manifest["metadata"]["name"]
        self.uid: str = manifest["metadata"]["uid"]
        self.directory = node.kubelet_root / "pods" / self.uid
        self.directory.mkdir(parents=True)
        self.volumes = Volumes(manifest, self.directory / "volumes", node, config_maps)
        self.init_containers = [Container(self, spec) for spec in self.spec.get("initContainers", [])]
        self.containers = [Container(self, spec) for spec in self.spec["containers"]]

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __getitem__(self, name: str) -> Container:
        return {one.name: one for one in [*self.init_containers, *self.containers]}[name]

    def start(self) -> "Pod":
        """Volumes, then init containers one after the other, then all containers.

        FailedMountError, ContainerConfigError or ContainerError leave it where it was; it can be started again.
        """
        self.volumes.prepare()
        for container in self.init_containers:
            container.start()
            status = container.wait()
            if status:
                raise ContainerError(f"init container {container.name} ended with {status}:\n{container.logs()}")
        for container in self.containers:
            container.start()
        return self

    def region(self, container: str) -> Path:
        """Where a container's ledger lies, as this process reaches it."""
        volumes = self.directory / "volumes" / "kubernetes.io~empty-dir"
        return self.node.see(volumes / "vgpu-region" / container / "region")

    def delete(self) -> None:
        """Kill what runs and remove all of it from the node."""
        for container in [*self.init_containers, *self.containers]:
            container.kill()
        self.volumes.remove()
        shutil.rmtree(self.directory, ignore_errors=True)


def pid_namespace(pid: int) -> str:
    """Name of the pid namespace of a process of this machine, empty if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 — no file is meant
    except OSError:
        return ""
