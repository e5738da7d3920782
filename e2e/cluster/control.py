"""Command lines of the control plane: etcd, API server, controller manager, scheduler, kube-proxy."""

from pathlib import Path

from e2e.cluster.settings import NODE_IP, NODE_NAME, POD_RANGE, SERVICE_RANGE

ETCD = "http://127.0.0.1:2379"


def etcd(folder: Path) -> list[str]:
    """Keeps everything in memory: `folder` lies on a tmpfs."""
    peer = "http://127.0.0.1:2380"
    return [
        "etcd",
        "--name=n",
        f"--data-dir={folder}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=n={peer}",
        "--log-level=warn",
        "--unsafe-no-fsync",
    ]


def api_server(programs: Path, pki: Path) -> list[str]:
    """The API server, with the admission plugins that it has by default and the node's own restriction."""
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--bind-address={NODE_IP}",
        f"--advertise-address={NODE_IP}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--token-auth-file={pki}/tokens.csv",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/accounts.pub",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        # A webhook's Service is resolved to its endpoints here: no kube-proxy is needed for that.
        "--enable-aggregator-routing=true",
        "--profiling=false",
    ]


def controller_manager(programs: Path, pki: Path) -> list[str]:
    """All controllers; at the default rates a new namespace's ServiceAccount comes seconds late."""
    return [
        str(programs / "kube-controller-manager"),
        *_kubeconfig(pki / "kube-controller-manager.kubeconfig"),
        f"--service-account-private-key-file={pki}/accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler(programs: Path, pki: Path) -> list[str]:
    """The default scheduler, for all pods that aren't KAI's."""
    return [str(programs / "kube-scheduler"), *_kubeconfig(pki / "kube-scheduler.kubeconfig")]


def kube_proxy(programs: Path, pki: Path) -> list[str]:
    """Service addresses for pods, by iptables rules of the own network namespace."""
    return [
        str(programs / "kube-proxy"),
        f"--kubeconfig={pki}/admin.kubeconfig",
        f"--hostname-override={NODE_NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_RANGE}",
        f"--bind-address={NODE_IP}",
        f"--healthz-bind-address={NODE_IP}:10256",
        f"--metrics-bind-address={NODE_IP}:10249",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
    ]


def _kubeconfig(path: Path) -> list[str]:
    flags = [f"--{kind}kubeconfig={path}" for kind in ("", "authentication-", "authorization-")]
    return [*flags, f"--bind-address={NODE_IP}", "--leader-elect=false"]
