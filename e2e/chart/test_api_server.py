"""The chart on a real API server, with the checkout's webhook behind its Service: what is stored, what is refused."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.chart.render import Rendered, render
from e2e.cluster.client import Object
from e2e.cluster.cluster import Cluster
from e2e.cluster.release import NAME, Release
from e2e.cluster.settings import Settings

CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{NAME}-mutating"
MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
SHARE = {"gpu-memory": "4096"}
PODS = "/api/v1/namespaces/tenant/pods"
RELEASES = Path(__file__).parent / "releases"  # each release's rendering, kept when it is made


@pytest.fixture(scope="module")
def release(api_server: Cluster) -> Iterator[Release]:
    release = Release(api_server)
    release.install()
    for name in ("tenant", "free"):
        labels = {"kai-resource-isolator.io/webhook": "ignore"} if name == "free" else {}
        _post(api_server, "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        _post(api_server, f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    release.start_replicas(1)
    _eventually_stored(release)
    yield release
    release.uninstall()
    for name in ("tenant", "free"):
        api_server.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def pod(release: Release, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of a stored pod with a share."""
    name = request.node.name.partition("[")[0].replace("_", "-")[:50]
    status, answer = _create(release, _pod(name, SHARE))
    assert status == 201, answer
    yield f"/api/v1/namespaces/tenant/pods/{name}"
    release.cluster.request("DELETE", f"/api/v1/namespaces/tenant/pods/{name}")


def _pod(name: str, annotations: dict[str, str]) -> Object:
    container = {"name": "main", "image": "x"}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": [container]}}


def _post(cluster: Cluster, path: str, body: Object) -> None:
    status, answer = cluster.request("POST", path, body)
    assert status in (201, 409), answer


def _create(release: Release, body: Object, namespace: str = "tenant", user: str = "admin") -> tuple[int, Object]:
    return release.cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", body, user=user)


def test_pod_with_a_share_is_stored_with_all_mounts(release: Release, pod: str) -> None:
    stored = release.cluster.get(pod)["spec"]["containers"][0]
    paths = {mount["mountPath"] for mount in stored["volumeMounts"]}
    assert {"/usr/local/vgpu", "/etc/ld.so.preload", "/run/vgpu", "/etc/vgpu"} <= paths
    print(f"stored with mounts {', '.join(sorted(path for path in paths if 'secrets' not in path))}")


@pytest.mark.parametrize(
    "change",
    [
        {"gpu-memory": "8192"},
        {"gpu-memory": None},
        {"gpu-fraction": "0.9"},
        {"gpu-fraction-num-devices": "4"},
        {"gpu-fraction-container-name": "other"},
        {"kai-resource-isolator.io/inject": "false"},
    ],
    ids=lambda change: next(iter(change)) + ("-removed" if None in change.values() else ""),
)
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_annotations_of_a_share_stay_what_they_were(
    release: Release, pod: str, change: dict[str, Any], subresource: str
) -> None:
    status, answer = release.cluster.request(
        "PATCH", pod + subresource, {"metadata": {"annotations": change}}, headers=MERGE
    )
    assert status == 403
    assert f"annotation {next(iter(change))} decides the share" in answer["message"]
    print(f"refused: {answer['message'].partition('denied request: ')[2]}")


def test_other_annotations_can_change(release: Release, pod: str) -> None:
    status, _ = release.cluster.request("PATCH", pod, {"metadata": {"annotations": {"note": "x"}}}, headers=MERGE)
    assert status == 200


def test_binding_carries_no_annotation_of_a_share(release: Release, pod: str) -> None:
    name = pod.rpartition("/")[2]
    binding = {
        "metadata": {"name": name, "annotations": {"gpu-memory": "8192"}},
        "target": {"kind": "Node", "name": "n"},
    }
    for path in (f"{pod}/binding", "/api/v1/namespaces/tenant/bindings"):
        status, answer = release.cluster.request("POST", path, binding)
        assert status == 403
        assert "a Binding may not carry annotation gpu-memory" in answer["message"]
    binding["metadata"].pop("annotations")  # type: ignore[attr-defined]
    assert release.cluster.request("POST", f"{pod}/binding", binding)[0] == 201
    print("refused with annotation gpu-memory, bound without")


def test_ephemeral_container_is_refused_beside_a_share(release: Release, pod: str) -> None:
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x"}]}}
    status, answer = release.cluster.request("PATCH", f"{pod}/ephemeralcontainers", body, headers=STRATEGIC)
    assert status == 403
    assert "an ephemeral container can't be limited" in answer["message"]
    print(f"refused: {answer['message'].partition('denied request: ')[2]}")


def test_ephemeral_container_is_let_into_other_pods(release: Release) -> None:
    assert _create(release, _pod("plain", {}))[0] == 201
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x"}]}}
    path = "/api/v1/namespaces/tenant/pods/plain/ephemeralcontainers"
    assert release.cluster.request("PATCH", path, body, headers=STRATEGIC)[0] == 200


def test_pod_that_lost_its_mounts_is_not_stored(release: Release) -> None:
    """A webhook that runs after ours drops them, or puts a container in front of the one that has them."""
    moved = _pod("moved", SHARE)
    _, injected = _create(release, _pod("whole", SHARE))
    moved["spec"] = {key: injected["spec"][key] for key in ("containers", "volumes")}
    moved["spec"]["containers"].insert(0, {"name": "in-front", "image": "x"})
    stored = copy.deepcopy(release.cluster.get(CONFIGURATION))
    assert release.cluster.request("DELETE", CONFIGURATION)[0] == 200
    try:
        _eventually_refused(release, "reached storage without the library")
        status, answer = release.cluster.request("POST", f"{PODS}?dryRun=All", moved)
        assert (status, "reached storage without the library" in answer["message"]) == (403, True)
        moved["metadata"]["annotations"]["gpu-fraction-container-name"] = "main"
        assert release.cluster.request("POST", f"{PODS}?dryRun=All", moved)[0] == 201
    finally:
        for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            stored["metadata"].pop(field)
        _post(release.cluster, CONFIGURATION.rpartition("/")[0], stored)
    _eventually_stored(release)


@pytest.mark.parametrize("value", ["false", "False", " no", "0"])
def test_pod_opts_out(release: Release, value: str) -> None:
    name = f"out-{value.encode().hex()}"
    status, answer = _create(release, _pod(name, SHARE | {"kai-resource-isolator.io/inject": value}))
    assert status == 201, answer
    assert not any(volume["name"].startswith("vgpu-") for volume in answer["spec"]["volumes"])
    print(f"stored as written; warning: {answer['httpWarnings'][0]}")


def test_namespace_opts_out(release: Release) -> None:
    status, answer = _create(release, _pod("free", SHARE), namespace="free")
    assert status == 201, answer
    assert not any(volume["name"].startswith("vgpu-") for volume in answer["spec"]["volumes"])


def test_namespace_under_pod_security_is_refused_with_the_remedy(release: Release) -> None:
    for level in ("baseline", "restricted"):
        namespace = {"metadata": {"name": level, "labels": {"pod-security.kubernetes.io/enforce": level}}}
        _post(release.cluster, "/api/v1/namespaces", namespace)
        _post(release.cluster, f"/api/v1/namespaces/{level}/serviceaccounts", {"metadata": {"name": "default"}})
        # Until the webhook has seen the namespace, the API server itself refuses the pod.
        message = _eventually_refused(release, "admission webhook", namespace=level)
        assert f"pod-security.kubernetes.io/enforce={level}" in message
        assert "run the pod in a namespace labelled" in message
        print(f"refused: {message}")


def test_upgrade_leaves_the_certificate_to_its_owner(release: Release) -> None:
    before = release.cluster.get(CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]
    release.install("--set=webhook.timeoutSeconds=7")
    after = release.cluster.get(CONFIGURATION)["webhooks"][0]
    assert after["timeoutSeconds"] == 7
    assert after["clientConfig"]["caBundle"] == before
    assert _create(release, _pod("after-upgrade", SHARE))[0] == 201


def test_exempt_group_may_change_what_others_may_not(release: Release) -> None:
    release.install("--set=policies.exemptGroups={system:masters}")
    assert _create(release, _pod("exempt", SHARE))[0] == 201
    path = "/api/v1/namespaces/tenant/pods/exempt"
    patch = {"metadata": {"annotations": {"gpu-memory": "1024"}}}

    def is_let() -> bool:
        return release.cluster.request("PATCH", path, patch, headers=MERGE)[0] == 200

    try:
        release.cluster.wait("the policy knows the group", is_let, 20)
    finally:
        release.install()


def test_webhook_down_harms_no_other_pod(release: Release) -> None:
    for port in list(release._replicas):
        release.stop_replica(port)
    try:
        assert _create(release, _pod("unharmed", {}))[0] == 201
        message = _eventually_refused(release, "failed calling webhook")
        print(f"a pod without a share is stored; with a share: {message}")
    finally:
        release.start_replicas(1)
    _eventually_stored(release)


def test_release_renders_as_helm_stored_it(settings: Settings, release: Release) -> None:
    """What `helm template` shows is what `helm install` does: nothing depends on the cluster's state."""
    release.install()
    stored = Rendered(release.cluster.helm("get", "manifest", NAME, f"--namespace={NAME}"))
    expected = [document for document in render(settings).objects if document["kind"] != "Pod"]  # the test's hook
    assert sorted(map(str, stored.objects)) == sorted(map(str, expected))


@pytest.mark.parametrize("file", sorted(RELEASES.glob("*.yaml")), ids=lambda file: str(file.stem))
def test_every_earlier_release_can_be_upgraded(api_server: Cluster, release: Release, file: Path) -> None:
    """No field that Kubernetes keeps for ever (a selector) may change: helm takes over what an old release made."""
    release.uninstall()
    owner = {"meta.helm.sh/release-name": NAME, "meta.helm.sh/release-namespace": NAME}
    objects = [document for document in Rendered(file.read_text()).objects if document["kind"] != "Pod"]
    for document in objects:
        document["metadata"].setdefault("annotations", {}).update(owner)
    api_server.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects))
    release.install()
    release.start_replicas(1)
    _eventually_stored(release)
    print(f"release {file.stem}, {len(objects)} objects, upgraded; a pod with a share is stored")


def test_uninstall_leaves_no_object_behind(api_server: Cluster, release: Release) -> None:
    release.uninstall()
    selector = f"app.kubernetes.io/instance={NAME}"
    kinds = "all,secrets,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,serviceaccounts,networkpolicies"
    kinds += ",mutatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,pdb"
    found = api_server.kubectl("get", kinds, "--all-namespaces", f"--selector={selector}", "--output=json")
    assert json.loads(found)["items"] == []
    release.install()
    release.start_replicas(1)


def _eventually_refused(release: Release, sentence: str, namespace: str = "tenant") -> str:
    """The API server's caches follow within a second or so; what it says then."""
    said: list[str] = []

    def is_refused() -> bool:
        status, answer = _create(release, _pod("refused", SHARE), namespace)
        if status == 201:
            release.cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/refused?gracePeriodSeconds=0")
        said.append(str(answer.get("message", "")))
        return status in (403, 500) and sentence in said[-1]

    release.cluster.wait(f"a share is refused: {sentence}", is_refused, 20)
    return said[-1]


def _eventually_stored(release: Release) -> None:
    def is_stored() -> bool:
        status, _ = _create(release, _pod("stored", SHARE))
        release.cluster.request("DELETE", "/api/v1/namespaces/tenant/pods/stored?gracePeriodSeconds=0")
        return status == 201

    release.cluster.wait("a share is stored again", is_stored, 20)
