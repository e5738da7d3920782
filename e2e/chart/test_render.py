"""What helm makes of the defaults and of each value."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.chart.render import CHART, PROMETHEUS, RefusedError, render
from e2e.cluster.settings import Settings

JOBS = Path(__file__).parent / "jobs.json"
SNAPSHOT = Path(__file__).parent / "snapshots" / "default.yaml"


def test_defaults_render_as_the_snapshot_says(settings: Settings) -> None:
    """A change of what users get is seen in review; `helm template` into the file renews it."""
    assert render(settings).text == SNAPSHOT.read_text()


def test_jobs_for_use_without_helm_are_the_charts(settings: Settings) -> None:
    made = json.loads(render(settings).one("ConfigMap", "-verify")["data"]["jobs.json"])
    assert json.loads(JOBS.read_text()) == made


def test_rendering_twice_gives_the_same(settings: Settings) -> None:
    """Nothing random, no time: GitOps tools see no drift, and caBundle isn't rendered at all."""
    first, second = render(settings), render(settings)
    assert first.text == second.text
    assert "caBundle" not in first.one("MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]


def test_chart_passes_lint(settings: Settings) -> None:
    done = subprocess.run(
        [settings.programs / "helm", "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["webhook.replicas=3"], "additional properties 'replicas' not allowed"),
        (["preset=gke"], "value must be one of 'ordinary', 'gke-cos'"),
        (["webhook.failurePolicy=fail"], "value must be one of 'Fail', 'Ignore'"),
        (
            ["webhook.podDisruptionBudget.minAvailable=1", "webhook.podDisruptionBudget.maxUnavailable=1"],
            "set the other to null",
        ),
        (["webhook.optOut.allowed=namespaces"], "webhook.optOut.namespaces is empty"),
        (["webhook.optOut.namespaces={a}"], "set allowed to 'namespaces', or empty the list"),
        (["monitor.serviceMonitor.enabled=true", "monitor.podMonitor.enabled=true"], "scraped twice"),
        (["paths.driver=/opt/nvidia"], "would both bring NVML"),
        (["tls.certManager.issuerRef.kind=Issuer"], "name is missing"),
        (["tests.namespace=kai-resource-isolator"], "never reaches the webhook"),
        (["paths.library=/var/lib"], "is the node's own folder"),
        (["paths.library=var/lib/x"], "does not match pattern"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_a_sentence(
    settings: Settings, values: list[str], sentence: str
) -> None:
    with pytest.raises(RefusedError, match=sentence.replace("{", r"\{")):
        render(settings, *(f"--set={value}" for value in values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"maxUnavailable": 1}),
        (["minAvailable=1"], {"minAvailable": 1}),
        (["minAvailable=0"], {"minAvailable": 0}),
        (["maxUnavailable=50%"], {"maxUnavailable": "50%"}),
        (["minAvailable=null", "maxUnavailable=0"], {"maxUnavailable": 0}),
    ],
)
def test_disruption_budget_has_exactly_one_field(
    settings: Settings, values: list[str], expected: dict[str, object]
) -> None:
    made = render(settings, *(f"--set=webhook.podDisruptionBudget.{value}" for value in values))
    budget = made.one("PodDisruptionBudget")["spec"]
    assert {key: budget[key] for key in budget if key.endswith("vailable")} == expected


@pytest.mark.parametrize("values", ["webhook.replicaCount=1", "webhook.podDisruptionBudget.enabled=false"])
def test_one_replica_has_no_disruption_budget(settings: Settings, values: str) -> None:
    assert render(settings, f"--set={values}").all("PodDisruptionBudget") == []


def test_no_name_is_longer_than_63_characters(settings: Settings) -> None:
    release = "a-release-with-a-name-as-long-as-helm-lets-it-be-xyz"
    made = render(settings, release=release)
    names = [document["metadata"]["name"] for document in made.objects]
    assert f"{release}-mutating" in names
    assert max(map(len, names)) <= 63


def test_service_of_a_release_with_a_dot_has_a_name_that_a_service_may_have(settings: Settings) -> None:
    made = render(settings, release="team.a")
    services = [document["metadata"]["name"] for document in made.all("Service")]
    assert services
    assert all(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) for name in services)
    assert made.one("MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]["name"] in services


def test_every_container_is_hardened(settings: Settings) -> None:
    made = render(settings)
    jobs = json.loads(made.one("ConfigMap", "-verify")["data"]["jobs.json"])
    ran_by_helm_test = {name: job["spec"]["template"]["spec"] for name, job in jobs.items()}
    for component, pod in (made.pods() | ran_by_helm_test | {"verify": made.one("Pod")["spec"]}).items():
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, component
            assert own["allowPrivilegeEscalation"] is False, component
            assert own["capabilities"]["drop"] == ["ALL"], component
            # The Jobs have what any tenant's pod has; no limit of theirs may be what stops them.
            assert component in ran_by_helm_test or container["resources"]["limits"]["memory"], component
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, component


def test_only_the_monitor_keeps_capabilities_and_the_hosts_pids(settings: Settings) -> None:
    pods = render(settings).pods()
    added = {name: pod["containers"][0]["securityContext"]["capabilities"].get("add") for name, pod in pods.items()}
    assert added == {"webhook": None, "libsync": None, "monitor": ["SETGID", "SETPCAP", "SETUID"]}
    assert {name for name, pod in pods.items() if pod.get("hostPID")} == {"monitor"}
    assert pods["webhook"]["securityContext"]["runAsNonRoot"] is True


def test_libsync_has_no_token(settings: Settings) -> None:
    assert render(settings).pods()["libsync"]["automountServiceAccountToken"] is False


def test_secrets_are_named_in_every_role_that_reads_them(settings: Settings) -> None:
    for role in (*render(settings).all("Role"), *render(settings).all("ClusterRole")):
        for rule in role["rules"]:
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role"
                assert rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_registry_goes_in_front_of_every_image(settings: Settings) -> None:
    made = render(
        settings,
        "--set=global.imageRegistry=registry.example.com/gpu/",
        f"--set=webhook.image.digest=sha256:{'a' * 64}",
    )
    images = {pod["containers"][0]["image"] for pod in made.pods().values()}
    assert images == {
        f"registry.example.com/gpu/kai-resource-isolator/webhook@sha256:{'a' * 64}",
        "registry.example.com/gpu/kai-resource-isolator/webhook:0.1.0",
        "registry.example.com/gpu/kai-resource-isolator/libsync:0.1.0",
    }


@pytest.mark.parametrize("component", ["webhook", "monitor", "librarySync"])
def test_each_component_takes_what_operators_add(settings: Settings, component: str, tmp_path: Path) -> None:
    own = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"note": "x"},
        "podLabels": {"team": "gpu"},
        "env": [{"name": "E", "value": "1"}],
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({component: own, "global": {"imagePullSecrets": [{"name": "pull"}]}}))
    made = render(settings, f"--values={file}")
    name = {"librarySync": "libsync"}.get(component, component)
    pod = made.pods()[name]
    container = pod["containers"][0]
    assert pod["nodeSelector"] == own["nodeSelector"]
    assert pod["tolerations"] == own["tolerations"]
    assert pod["affinity"] == own["affinity"]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "E", "value": "1"} in container["env"]
    assert {"name": "v", "emptyDir": {}} in pod["volumes"]
    assert {"name": "v", "mountPath": "/v"} in container["volumeMounts"]
    assert container["resources"]["limits"]["memory"] == "1Gi"
    template = next(
        document["spec"]["template"]["metadata"]
        for document in (*made.all("Deployment"), *made.all("DaemonSet"))
        if document["metadata"]["name"].endswith(name)
    )
    assert template["annotations"]["note"] == "x"
    assert template["labels"]["team"] == "gpu"


def test_common_labels_and_annotations_are_on_every_object(settings: Settings) -> None:
    made = render(
        settings,
        "--set=commonLabels.team=gpu",
        "--set=commonAnnotations.owner=gpu",
        "--set=monitor.dashboard.enabled=true",
    )
    for document in made.objects:
        assert document["metadata"]["labels"]["team"] == "gpu", document["metadata"]["name"]
        assert document["metadata"]["annotations"]["owner"] == "gpu", document["metadata"]["name"]


@pytest.mark.parametrize(
    ("preset", "library", "runtime_class", "privileged"),
    [
        ("ordinary", "/var/lib/kai-resource-isolator", "nvidia", None),
        ("gke-cos", "/home/kubernetes/bin/kai-resource-isolator", None, True),
        ("bottlerocket", "/var/lib/kai-resource-isolator", None, None),
        ("talos", "/var/lib/kai-resource-isolator", "nvidia", None),
        ("openshift", "/var/lib/kai-resource-isolator", "nvidia", None),
    ],
)
def test_preset_decides_paths_and_runtime(
    settings: Settings, preset: str, library: str, runtime_class: str | None, privileged: bool | None
) -> None:
    made = render(settings, f"--set=preset={preset}")
    pods = made.pods()
    libsync = pods["libsync"]["containers"][0]["args"]
    assert {f"--preset={preset}", f"--target={library}"} <= set(libsync)
    assert f"--library-base={library}" in pods["webhook"]["containers"][0]["args"]
    assert f"startsWith('{library}/abi-')" in made.text
    assert pods["monitor"].get("runtimeClassName") == runtime_class
    assert pods["monitor"]["containers"][0]["securityContext"].get("privileged") is privileged
    assert len(made.all("SecurityContextConstraints")) == (2 if preset == "openshift" else 0)
    assert len(made.all("ResourceQuota")) == (1 if preset == "gke-cos" else 0)


def test_what_the_user_gives_wins_over_the_preset(settings: Settings) -> None:
    made = render(
        settings,
        "--set=preset=gke-cos",
        "--set=paths.library=/mnt/x",
        "--set=paths.driver=",
        "--set=monitor.privileged=false",
    )
    monitor = made.pods()["monitor"]["containers"][0]
    assert "privileged" not in monitor["securityContext"]
    assert not any(mount["name"] == "driver" for mount in monitor["volumeMounts"])
    assert "--target=/mnt/x" in made.pods()["libsync"]["containers"][0]["args"]


def test_prometheus_objects_come_only_where_their_kind_is_known(settings: Settings) -> None:
    values = ["--set=monitor.podMonitor.enabled=true", "--set=monitor.prometheusRule.enabled=true"]
    values.append("--set=webhook.podMonitor.enabled=true")
    kinds = {"PodMonitor", "PrometheusRule", "ServiceMonitor"}
    assert kinds.isdisjoint(document["kind"] for document in render(settings, *values).objects)
    made = render(settings, *values, PROMETHEUS)
    assert {document["kind"] for document in made.objects} & kinds == {"PodMonitor", "PrometheusRule"}
    ports = {monitor["spec"]["podMetricsEndpoints"][0]["port"] for monitor in made.all("PodMonitor")}
    assert ports == {"metrics"}
    assert len(made.all("PodMonitor")) == 2


def test_cert_manager_takes_over_the_certificate(settings: Settings) -> None:
    made = render(settings, "--set=tls.certManager.enabled=true")
    name = "kai-resource-isolator-webhook"
    annotations = made.one("MutatingWebhookConfiguration")["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"kai-resource-isolator/{name}"}
    assert made.one("Certificate")["spec"]["secretName"] == f"{name}-tls"
    assert made.one("Certificate")["spec"]["issuerRef"]["name"] == made.one("Issuer")["metadata"]["name"]
    webhook = made.pods()["webhook"]
    assert {"name": "tls", "secret": {"secretName": f"{name}-tls"}} in webhook["volumes"]
    assert not any(argument.startswith("--tls-secret") for argument in webhook["containers"][0]["args"])
    assert all("secrets" not in rule["resources"] for role in made.all("Role") for rule in role["rules"])


@pytest.mark.parametrize(
    ("values", "excluded_by_label", "policies"),
    [([], True, 4), (["optOut.allowed=nobody"], False, 4), (["failurePolicy=Ignore"], True, 3)],
)
def test_opt_out_and_failure_policy_shape_the_api_servers_rules(
    settings: Settings, values: list[str], excluded_by_label: bool, policies: int
) -> None:
    made = render(settings, *(f"--set=webhook.{value}" for value in values))
    selector = made.one("MutatingWebhookConfiguration")["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    keys = [expression["key"] for expression in selector]
    assert ("kai-resource-isolator.io/webhook" in keys) is excluded_by_label
    assert len(made.all("ValidatingAdmissionPolicy")) == policies


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("monitor.enabled=false", {"Service", "DaemonSet"}),
        ("rbac.create=false", {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}),
        ("policies.enabled=false", {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}),
        ("webhook.networkPolicy.enabled=false", {"NetworkPolicy"}),
        ("tests.enabled=false", {"Namespace", "Pod"}),
    ],
)
def test_each_switch_takes_its_objects_away(settings: Settings, value: str, kinds: set[str]) -> None:
    whole, without = render(settings).objects, render(settings, f"--set={value}").objects
    gone = {document["kind"] for document in whole if document not in without}
    assert kinds <= gone
