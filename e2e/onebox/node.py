"""The node of one machine: a directory, a namespace for its mounts, a simulated card, and an image made of the host.

Everything it starts dies with it, and its directory goes, also when the runner is killed. Containers must be started
from the runner's main thread: the kernel's watch on the parent is a watch on the thread.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from e2e.onebox import linux
from e2e.onebox.sandbox import Mount, Spec

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
DRIVER_FILES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Where GPU nodes commonly show the driver in a container.
DRIVER_DIRECTORY = "/usr/local/nvidia/lib64"
CARD_DIRECTORY = "/run/simgpu"
_TERMINATION_SECONDS = 15
_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "hosts")
# The host's own program where it gets on with the simulated driver, else the same query by the probe.
_NVIDIA_SMI = """#!/bin/sh
if said=$(/usr/bin/nvidia-smi "$@" 2>/dev/null); then echo "$said"; else exec vgpu-probe info --csv; fi
"""
REMEDY = (
    "the runner needs namespaces of its own: run it as root, or allow unprivileged user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces>0, "
    "kernel.apparmor_restrict_unprivileged_userns=0)"
)


class NoNamespacesError(Exception):
    """This machine allows neither root's nor a user's namespaces; the text says the remedy."""


class ContainerError(Exception):
    """A container's process couldn't be started (kubelet: CreateContainerError, RunContainerError)."""


class Node:
    """Use as a context manager; `with Node() as node: ...`."""

    def __init__(self, cards: Sequence[str] = ("T4",), keep_in: Path = BUILD / "onebox") -> None:
        self._stack = ExitStack()
        keep_in.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="node-", dir=keep_in))
        self.directory.chmod(0o755)
        self.kubelet_root = self.directory / "kubelet"
        self.library_base = self.directory / "library"
        self.card_state = self.directory / "card" / "state"
        self.host_ip = "127.0.0.1"
        self.name = "onebox"
        self._cards = cards
        self._holder: subprocess.Popen[str]

    def __enter__(self) -> "Node":
        try:
            self._holder = self._stack.enter_context(self._start_holder())
            self._make_card()
            self._make_image()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Process that holds the node's namespaces; /proc/<pid>/root shows the node with its mounts."""
        return self._holder.pid

    def see(self, path: Path) -> Path:
        """A path of the node as this process reaches it, through the node's own mounts."""
        return Path(f"/proc/{self.pid}/root") / path.relative_to("/")

    def ask(self, do: str, path: Path, **fields: str) -> None:
        """Have the holder mount or make something (holder.py lists what)."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(json.dumps({"do": do, "path": str(path), **fields}) + "\n")
        self._holder.stdin.flush()
        answer = self._holder.stdout.readline().strip()
        if answer != "ok":
            raise OSError(json.loads(answer or '"the holder of the node has ended"'))

    def spawn(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, output: IO[bytes] | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program of the node itself (a DaemonSet's): it sees the node's mounts, and ends with the node."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", f"--wd={ROOT}"]
        if not linux.same_namespace(self.pid, "user"):
            enter += ["--user", "--preserve-credentials"]
        process = subprocess.Popen(
            [*enter, "--", *map(str, argv)],
            env=dict(os.environ if env is None else env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=linux.die_with_parent,  # noqa: PLW1509 — one thread
        )
        self._stack.callback(_terminate, process)
        return process

    def driver_env(self) -> dict[str, str]:
        """Environment that leads a program of the node to the simulated driver and card."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "LD_", "SIMGPU_"))}
        return clean | {"LD_LIBRARY_PATH": str(BUILD / "simgpu"), "SIMGPU_STATE": str(self.card_state)}

    def truth(self) -> list[dict[str, Any]]:
        """What the card really holds, by the simulator itself."""
        command = [str(BUILD / "simgpu" / "simgpu"), "truth", "--state", str(self.card_state)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self.driver_env())
        cards: list[dict[str, Any]] = json.loads(done.stdout)["cards"]
        return cards

    def run_in_sandbox(self, spec: Spec, output: IO[bytes] | int) -> tuple[subprocess.Popen[bytes], int]:
        """Start a container's process; the sandbox's process (which ends as it ends) and its pid on the host."""
        spec_read, spec_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "e2e.onebox.sandbox", str(spec_read), str(status_write)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not subprocess.PIPE else subprocess.PIPE,
                pass_fds=(spec_read, status_write),
            )
        finally:
            os.close(spec_read)
            os.close(status_write)
        with os.fdopen(spec_write, "w") as file:
            file.write(spec.to_json())
        with os.fdopen(status_read) as file:
            pid, _, failure = file.read().partition("\n")
        if failure or not pid:
            process.wait()
            raise ContainerError(failure or "the sandbox ended before the container started")
        self._stack.callback(_kill, process, int(pid))
        return process, int(pid)

    def image_mounts(self, with_driver: bool) -> list[Mount]:
        """What the image and the GPU runtime bring into a container beside the host's programs."""
        tools = self.directory / "image" / "bin"
        mounts = [Mount(str(tools / name), f"/usr/local/bin/{name}") for name in ("vgpu-probe", "nvidia-smi")]
        if with_driver:
            mounts += [Mount(str(BUILD / "simgpu" / name), f"{DRIVER_DIRECTORY}/{name}") for name in DRIVER_FILES]
            mounts.append(Mount(str(self.card_state.parent), CARD_DIRECTORY, read_only=False))
        return mounts

    def _start_holder(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "e2e.onebox.holder", str(self.directory)]
        attempts = [["unshare", "--mount"]] if os.geteuid() == 0 else []
        if shutil.which("newuidmap"):
            attempts.append(["unshare", "--mount", "--user", "--map-root-user", "--map-auto"])
        attempts.append(["unshare", "--mount", "--user", "--map-root-user"])
        reasons = []
        for attempt in attempts:
            holder = subprocess.Popen(
                [*attempt, "--", *command],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert holder.stdout is not None
            if holder.stdout.readline() == "ready\n":
                return holder
            reasons.append(holder.communicate()[1].strip().splitlines()[-1:])
        raise NoNamespacesError(f"{REMEDY}; what was said: {reasons}")

    def _make_card(self) -> None:
        self.card_state.parent.mkdir()
        cards = [argument for card in self._cards for argument in ("--card", card)]
        command = [str(BUILD / "simgpu" / "simgpu"), "create", "--state", str(self.card_state), *cards]
        subprocess.run(command, check=True)
        # Containers of any uid use the card, as they do /dev/nvidia0.
        self.card_state.parent.chmod(0o777)
        self.card_state.chmod(0o666)

    def _make_image(self) -> None:
        """An /etc of its own whose library cache knows the driver: `env -i` in a container finds it all the same."""
        etc, tools = self.directory / "image" / "etc", self.directory / "image" / "bin"
        etc.mkdir(parents=True)
        tools.mkdir()
        for name in _ETC:
            source = Path("/etc") / name
            if source.is_dir():
                shutil.copytree(source, etc / name, symlinks=True)
            elif source.exists():
                shutil.copy2(source, etc / name)
        (etc / "ld.so.conf.d").mkdir(exist_ok=True)
        (etc / "ld.so.conf.d" / "000-nvidia.conf").write_text(DRIVER_DIRECTORY + "\n")
        configuration = etc / "ld.so.conf"
        kept = configuration.read_text() if configuration.exists() else ""
        configuration.write_text("include /etc/ld.so.conf.d/000-nvidia.conf\n" + kept)
        shutil.copy2(BUILD / "vgpu-probe", tools / "vgpu-probe")
        (tools / "nvidia-smi").write_text(_NVIDIA_SMI)
        (tools / "nvidia-smi").chmod(0o755)
        root = self.directory / "image" / "root"
        root.mkdir()
        mounts = [*self.image_mounts(with_driver=True), Mount(str(etc), "/image-etc", read_only=False)]
        argv = ["/sbin/ldconfig", "-C", "/image-etc/ld.so.cache"]
        spec = Spec(argv, {}, self.pid, root=str(root), etc=str(etc), mounts=mounts)
        process, _ = self.run_in_sandbox(spec, subprocess.PIPE)
        _, errors = process.communicate()
        if process.returncode:
            raise ContainerError(f"ldconfig failed in the image: {errors.decode(errors='replace')}")


def _kill(sandbox: subprocess.Popen[bytes], pid: int) -> None:
    """End a container's process. Its sandbox waits for it, so the pid is no other one's and no zombie is left."""
    with sandbox:  # closes its pipes and waits for it
        if sandbox.poll() is None:
            os.kill(pid, signal.SIGKILL)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a program of the node, which may have children to take along."""
    with process:
        process.terminate()
        try:
            process.wait(_TERMINATION_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
