"""Nodes, replicas and releases come and go: no pod with a share ever runs without its limit."""

import time
from collections.abc import Iterator

import pytest

from e2e.cluster.chain import MIB, REPLICAS, Chain, Pod, eventually, quick_start, sleeper
from e2e.cluster.client import Object
from e2e.cluster.release import NAME
from e2e.cluster.settings import Settings
from e2e.images.catalog import NEXT, NEXT_ABI, NEXT_VERSION, build_next


@pytest.fixture
def default_values(chain: Chain) -> Iterator[None]:
    """Whatever the test installs, the next one finds the defaults."""
    assert chain.own
    yield
    chain.install()


BASE = "/var/lib/kai-resource-isolator"  # in the node's own mounts


@pytest.mark.usefixtures("default_values")
def test_pod_waits_for_a_node_that_is_not_ready(chain: Chain) -> None:
    """Rather than run without a limit: FailedMount until libsync is there."""
    chain.install("librarySync.nodeSelector.absent=yes")
    selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=libsync"
    eventually(
        "libsync is gone", lambda: chain.cluster.kubectl("get", "pods", f"-l={selector}", "-A", "-o=name") == "", 60
    )
    chain.own.run(["rm", "-rf", BASE])
    pod = chain.start(quick_start("waits"), phase="Pending")
    chain.cluster.wait("FailedMount is told", lambda: "FailedMount" in pod.events(), 60)
    assert pod.phase() == "Pending"
    told = next(event for event in pod.events().split("; ") if event.startswith("FailedMount"))
    chain.install()
    took = pod.wait_for("Running", 150)
    pod.wait_for_log("held     3 GiB")
    print(f"waited with {told[:110]!r}, ran {took:.0f} s after libsync came")
    pod.delete()


def test_deployment_rolls_without_a_refused_pod(chain: Chain) -> None:
    """Two replicas are replaced while pods with a share are created all the time."""
    assert chain.own
    chain.cluster.kubectl("rollout", "restart", f"deployment/{NAME}-webhook", f"--namespace={NAME}")
    stored = 0
    body = sleeper("rolled")

    def is_rolled() -> bool:
        nonlocal stored
        status, answer = chain.cluster.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
        assert status == 201, answer.get("message")
        assert any(volume["name"] == "vgpu-library" for volume in answer["spec"]["volumes"])
        stored += 1
        deployment = chain.cluster.get(f"/apis/apps/v1/namespaces/{NAME}/deployments/{NAME}-webhook")
        now = deployment["status"]
        counts = [now.get(kind, 0) for kind in ("replicas", "updatedReplicas", "availableReplicas")]
        return now["observedGeneration"] == deployment["metadata"]["generation"] and counts == [REPLICAS] * 3

    chain.cluster.wait("both replicas are new", is_rolled, 180, 0.05)
    print(f"both replicas replaced, {stored} pods with a share admitted meanwhile, none refused")


@pytest.mark.usefixtures("default_values")
def test_webhook_down_refuses_shares_and_nothing_else(chain: Chain) -> None:
    assert chain.own
    scale = ("scale", f"deployment/{NAME}-webhook", f"--namespace={NAME}")
    chain.cluster.kubectl(*scale, "--replicas=0")
    path = "/api/v1/namespaces/default/pods?dryRun=All"

    def is_down() -> bool:
        return chain.cluster.request("POST", path, sleeper("down"))[0] != 201

    chain.cluster.wait("the webhook is down", is_down, 60)
    _, answer = chain.cluster.request("POST", path, sleeper("down"))
    assert "failed calling webhook" in answer["message"]

    def plain(pod: Object) -> None:
        del pod["metadata"]["annotations"]

    ordinary = chain.start(sleeper("ordinary", plain))
    print(f"webhook down: a pod without a share runs, one with a share gets {answer['message'][:90]!r}")
    ordinary.delete()


def test_opted_out_pod_and_namespace_run_without_a_limit(chain: Chain) -> None:
    def opt_out(pod: Object) -> None:
        pod["metadata"]["annotations"]["kai-resource-isolator.io/inject"] = "false"

    pod = chain.start(sleeper("opted-out", opt_out))
    size = pod.run("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader").output.strip()
    assert int(size.rpartition(", ")[2].removesuffix("MiB")) > chain.card_mib() * 0.9
    pod.delete()
    namespace = {"metadata": {"name": "free", "labels": {"kai-resource-isolator.io/webhook": "ignore"}}}
    if chain.cluster.request("GET", "/api/v1/namespaces/free")[0] != 200:
        chain.create("/api/v1/namespaces", namespace)
    account = "/api/v1/namespaces/free/serviceaccounts/default"
    chain.cluster.wait("it has its account", lambda: chain.cluster.request("GET", account)[0] == 200, 20)
    answer = chain.create("/api/v1/namespaces/free/pods?dryRun=All", sleeper("free"))
    assert not any(volume["name"].startswith("vgpu-") for volume in answer["spec"]["volumes"])
    print(f"opted out: the pod sees {size}; in a namespace labelled ignore nothing is added")


def test_node_keeps_a_pods_library_when_libsync_is_replaced(chain: Chain) -> None:
    """libsync's own pod comes and goes; the pods that run don't notice."""
    pod = chain.start(sleeper("keeps", command=["vgpu-probe", "hold", "3GiB"]))
    pod.wait_for_log("held")
    chain.own.kubectl("rollout", "restart", f"daemonset/{NAME}-libsync", f"--namespace={NAME}")
    chain.own.kubectl("rollout", "status", f"daemonset/{NAME}-libsync", f"--namespace={NAME}", "--timeout=60s")
    assert "refused" in pod.run("vgpu-probe", "alloc", "2GiB").output
    assert pod.phase() == "Running"
    assert chain.used_bytes() > 3072 * MIB
    pod.delete()


@pytest.fixture(scope="module")
def next_release(chain: Chain, settings: Settings) -> None:
    """The node has the images of the releases that come after this one."""
    chain.own.load_image(build_next(settings))


def _library(pod: Pod) -> str:
    return pod.run("vgpu-probe", "info").output.splitlines()[0]


@pytest.mark.usefixtures("next_release", "default_values")
def test_library_is_upgraded_under_running_pods(chain: Chain) -> None:
    """The process that runs keeps the old file; the next one gets the new; both count in one ledger."""
    pod = chain.start(sleeper("upgraded", command=["vgpu-probe", "hold", "3GiB"]))
    pod.wait_for_log("held")
    assert "libvgpu 0.1.0, abi 1" in _library(pod)
    chain.install(f"librarySync.image.tag={NEXT}")
    assert f"libvgpu {NEXT_VERSION}, abi 1" in _library(pod)
    assert "refused  2 GiB" in pod.run("vgpu-probe", "alloc", "2GiB").output
    assert "granted  500 MiB" in pod.run("vgpu-probe", "alloc", "500MiB").output
    assert pod.phase() == "Running"
    print(f"a pod that holds 3 GiB by 0.1.0 starts a process with {NEXT_VERSION}: 500 MiB granted, 2 GiB refused")
    pod.delete()


@pytest.mark.usefixtures("next_release", "default_values")
def test_new_abi_reaches_new_pods_only(chain: Chain) -> None:
    """Two layouts never serve one container: an old pod keeps its directory and its ledger."""
    old = chain.start(sleeper("old-abi", command=["vgpu-probe", "hold", "3GiB"]))
    old.wait_for_log("held")
    chain.install(f"librarySync.image.tag={NEXT_ABI}", f"webhook.image.tag={NEXT_ABI}")
    new = chain.start(sleeper("new-abi"))
    assert "libvgpu 0.1.0, abi 1" in _library(old)
    assert f"libvgpu {NEXT_VERSION}, abi 2" in _library(new)
    for pod, size in ((old, "1GiB"), (new, "5GiB")):
        assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in pod.run("vgpu-probe", "alloc", size).output
    assert "granted  3 GiB" in new.run("vgpu-probe", "alloc", "3GiB").output
    paths = [volume["hostPath"]["path"] for volume in new.get()["spec"]["volumes"] if volume["name"] == "vgpu-library"]
    print(f"old pod: {_library(old)}; new pod: {_library(new)} from {paths[0]}; both are limited")
    for pod in (old, new):
        pod.delete()


def test_nothing_is_delayed_by_our_volumes(chain: Chain) -> None:
    begin = time.monotonic()
    pod = chain.start(sleeper("quick"))
    started = time.monotonic() - begin
    took = pod.delete(30)
    print(f"a pod with a share started in {started:.1f} s and was gone in {took:.1f} s")
