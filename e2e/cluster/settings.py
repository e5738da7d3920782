"""Where the cluster's parts come from and lie. The only module of this part that reads the environment."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES_VERSION = "1.34.4"
HELM_VERSION = "3.22.0"

# Debian packages: a package and a program or file by which its presence shows.
PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "etcd-server": "/usr/bin/etcd",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "debootstrap": "/usr/sbin/debootstrap",
    "busybox-static": "/bin/busybox",
    "iptables": "/usr/sbin/iptables",
    "iproute2": "/usr/sbin/ip",
    "conntrack": "/usr/sbin/conntrack",
    "curl": "/usr/bin/curl",
    "prometheus": "/usr/bin/prometheus",
}

# Addresses inside the cluster's own network namespace, and nowhere else.
NODE_IP = "10.98.0.3"  # the kubelet refuses 127.x as a node's address
API_SERVER = f"https://{NODE_IP}:6443"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"  # pods are told of it; nobody answers there
POD_RANGE = "10.243.0.0/24"
NODE_NAME = "node-1"


def _cache() -> Path:
    given = os.environ.get("KRI_CLUSTER_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kai-resource-isolator" / f"cluster-{KUBERNETES_VERSION}"


@dataclass(frozen=True)
class Settings:
    """The cache folder, and what somebody brings along instead of our own cluster."""

    cache: Path = field(default_factory=_cache)  # programs, Go's caches, base images: 4.5 GB when full
    foreign_kubeconfig: str = field(default_factory=lambda: os.environ.get("KUBECONFIG", ""))

    @property
    def programs(self) -> Path:
        """Folder of kubectl, kube-apiserver, helm and the others."""
        return self.cache / "bin"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Only one process at a time adds to the cache: the others find what it made."""
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def tool(self, name: str) -> str:
        """kubectl or helm: our own of the cluster's version, else the machine's."""
        own = self.programs / name
        return str(own) if own.exists() else shutil.which(name) or str(own)
