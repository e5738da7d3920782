"""Configuration and command lines of the node: containerd, its network plugin, the kubelet, control groups."""

import json
import shutil
import sys
from pathlib import Path

from e2e.cluster.janitor import CGROUPS
from e2e.cluster.settings import DNS_IP, NODE_IP, NODE_NAME, POD_RANGE

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "build" / "simgpu"
KUBELET_ROOT = Path("/var/lib/kubelet")  # the standard path: a mount of the run's own folder lies there
PAUSE_IMAGE = "registry.test/pause:1"

_CONTAINERD = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE (in a sandbox) a lower oom_score_adj can't be had.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/sbin/runc"
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "{folder}/nvidia-runtime"
      SystemdCgroup = false
"""


class Node:
    """One node's files below a folder of the run."""

    def __init__(self, folder: Path, pki: Path, programs: Path) -> None:
        self.folder = folder
        self.socket = folder / "containerd.sock"
        self.card = folder / "card"
        self.cgroup = folder.parent.name
        self._pki = pki
        self._programs = programs

    def preparation(self) -> list[str]:
        """Shell commands for the mount namespace: what containerd, kubelet and chart write at fixed places stays ours.

        The kubelet's root is a shared mount: else no pod sees what is mounted there later.
        """
        var = self.folder / "var"
        options = f"lowerdir=/var,upperdir={var}/upper,workdir={var}/work"
        own = self.folder / "kubelet"
        return [
            "umask 022; mount -t tmpfs run /run; mkdir /run/netns /run/lock",
            "mount -t tmpfs netns /run/netns; mount --make-rshared /run/netns",
            f"umask 022; mkdir -p {var}/upper {var}/work; mount -t overlay -o {options} var /var",
            f"mkdir -p {own} {KUBELET_ROOT}; mount --bind {own} {KUBELET_ROOT}; mount --make-rshared {KUBELET_ROOT}",
        ]

    def prepare(self) -> None:
        """Write the configuration, make the control groups."""
        for name in ("root", "state", "cni", "kubelet", "logs", "leases"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = _CONTAINERD.format(folder=self.folder, socket=self.socket, pause=PAUSE_IMAGE)
        (self.folder / "containerd.toml").write_text(text)
        self._prepare_runtime()
        address = {
            "type": "host-local",
            "dataDir": f"{self.folder}/leases",
            "ranges": [[{"subnet": POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": address}
        plugins = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(plugins))
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet_configuration()))
        for hierarchy in self._hierarchies():
            own = hierarchy / self.cgroup
            own.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (hierarchy / name).exists():
                    (own / name).write_text((hierarchy / name).read_text())

    def create_card(self) -> list[str]:
        """Command that makes the card; its host is the pid namespace in which this runs."""
        state = self.card / "state" / "state"
        create = f"{SIMULATED}/simgpu create --state {state} --card T4"
        return ["sh", "-ec", f"{create} && chmod 666 {state}"]  # for any uid, as a card's device files are

    def serve_card(self) -> list[str]:
        """Command line of what a real driver does in the kernel: it knows the host's pids of programs in containers."""
        return [str(SIMULATED / "simgpu"), "serve", "--state", str(self.card / "state" / "state")]

    def _prepare_runtime(self) -> None:
        """The runtime of RuntimeClass nvidia, and the folder from which it gives a container its card."""
        state = self.card / "state"
        state.mkdir(parents=True, exist_ok=True)
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(SIMULATED / library, self.card / library)
        state.chmod(0o777)
        _write_program(self.card / "nvidia-smi", "exec vgpu-probe info --csv")
        command = f"exec {sys.executable} -I -S {Path(__file__).with_name('runtime.py')} --card {self.card}"
        _write_program(self.folder / "nvidia-runtime", f'{command} "$@"')

    def containerd(self) -> list[str]:
        """Command line."""
        return ["containerd", "--config", str(self.folder / "containerd.toml")]

    def ctr(self, *arguments: str) -> list[str]:
        """Command line of containerd's own client, in the kubelet's namespace of images."""
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]

    def kubelet(self) -> list[str]:
        """Command line."""
        return [
            str(self._programs / "kubelet"),
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self._pki}/kubelet.kubeconfig",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
            f"--root-dir={KUBELET_ROOT}",
            f"--cert-dir={self._pki}",
        ]

    def _hierarchies(self) -> list[Path]:
        """Roots of the control group trees: one a controller (v1), or the one (v2)."""
        if (CGROUPS / "cgroup.controllers").exists():
            return [CGROUPS]
        return [path for path in CGROUPS.iterdir() if (path / "tasks").exists()]

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "healthzBindAddress": NODE_IP,
            "tlsCertFile": f"{self._pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{self._pki}/kubelet.key",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{self._pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "podLogsDir": f"{self.folder}/logs",
            "clusterDNS": [DNS_IP],
            "resolvConf": f"{self.folder}/resolv.conf",
            "hairpinMode": "none",
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,  # -999 can't be had in a sandbox
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "serializeImagePulls": False,
        }


def _write_program(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
