"""What an operator brings along from the reference chart, and what he reads after `helm install`."""

from pathlib import Path

import pytest

from e2e.chart.render import CHART, PROMETHEUS, RefusedError, render
from e2e.cluster.cluster import Cluster
from e2e.cluster.release import NAME
from e2e.cluster.settings import Settings

# As such files are written: intervals with a unit, a budget with one field, a GPU node's label.
REFERENCE = """
global: {imageRegistry: registry.example.com, imagePullSecrets: [{name: pull}]}
librarySync: {nodeSelector: {nvidia.com/gpu.present: "true"}, resources: {}, priorityClassName: system-node-critical}
monitor:
  enabled: true
  nodeSelector: {nvidia.com/gpu.present: "true"}
  runtimeClassName: ""
  resyncInterval: 5m
  updateInterval: 2m
  metricsPort: 9395
  serviceMonitor: {enabled: true, interval: 30s, scrapeTimeout: 10s, labels: {release: prometheus}}
  legacyMetrics: true
webhook:
  replicaCount: 3
  podDisruptionBudget: {minAvailable: 1}
  resources: {requests: {cpu: 10m, memory: 96Mi}, limits: {memory: 128Mi}}
  failurePolicy: Ignore
tls: {certManager: {enabled: false}}
rbac: {create: true}
"""


def test_values_of_the_reference_chart_are_taken(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(REFERENCE)
    made = render(settings, f"--values={file}", PROMETHEUS)
    monitor = made.pods()["monitor"]
    assert {"--interval=120", "--listen=0.0.0.0:9395", "--legacy-metrics=true"} <= set(monitor["containers"][0]["args"])
    assert monitor["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert "runtimeClassName" not in monitor
    [endpoint] = made.one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"], endpoint["honorLabels"]) == ("30s", "10s", True)
    assert made.one("ServiceMonitor")["metadata"]["labels"]["release"] == "prometheus"
    assert made.one("Deployment")["spec"]["replicas"] == 3
    assert made.one("MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Ignore"


def test_service_monitor_selects_the_headless_service(settings: Settings) -> None:
    made = render(settings, "--set=monitor.serviceMonitor.enabled=true", PROMETHEUS)
    service, monitor = made.one("Service", "-monitor"), made.one("ServiceMonitor")
    assert service["spec"]["clusterIP"] == "None"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("global.imageRegistri=x", "global.imageRegistri: this chart knows"),
        ("webhook.resources.limts.memory=1Gi", "additional properties 'limts' not allowed"),
        ("tls.certManager.issuerRef.knd=Issuer", "additional properties 'knd' not allowed"),
        ("monitor.updateStrategy.rolling=x", "additional properties 'rolling' not allowed"),
        ("monitor.updateInterval=5 s", "does not match pattern"),
    ],
)
def test_mistyped_value_is_refused(settings: Settings, value: str, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        render(settings, f"--set={value}")


def test_budget_of_null_is_the_default_one(settings: Settings) -> None:
    made = render(settings, "--set=webhook.podDisruptionBudget=null")
    assert made.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("value", ["fullnameOverride", "nameOverride"])
def test_no_name_of_a_long_override_is_longer_than_63_characters(settings: Settings, value: str) -> None:
    made = render(
        settings, f"--set={value}={'long-' * 15}x", "--set=preset=openshift", "--set=tls.certManager.enabled=true"
    )
    for document in made.objects:
        own = document["metadata"]
        assert len(own["name"]) <= 63
        assert all(len(label) <= 63 and not label.endswith("-") for label in own["labels"].values())


def test_openshift_lets_the_webhook_run_under_its_images_number(settings: Settings) -> None:
    made = render(settings, "--set=preset=openshift")
    binding = made.one("RoleBinding", "-nonroot")
    assert binding["roleRef"]["name"] == "system:openshift:scc:nonroot-v2"
    assert {subject["name"] for subject in binding["subjects"]} == {f"{NAME}-webhook", f"{NAME}-verify"}
    users = made.one("SecurityContextConstraints", "-node")["users"]
    assert users == [f"system:serviceaccount:{NAME}:{NAME}-{part}" for part in ("libsync", "monitor")]


def test_on_openshift_the_pods_of_helm_test_may_get_their_mounts_and_nothing_more(settings: Settings) -> None:
    made = render(settings, "--set=preset=openshift")
    share = made.one("SecurityContextConstraints", "-share")
    assert share["users"] == [f"system:serviceaccount:{NAME}-test:default"]
    assert {name for name, allowed in share.items() if allowed is True} == {"allowHostDirVolumePlugin"}
    assert share["allowedCapabilities"] is None
    assert [
        one["metadata"]["name"]
        for one in render(settings, "--set=preset=openshift", "--set=tests.enabled=false").all(
            "SecurityContextConstraints"
        )
    ] == [f"{NAME}-node"]


def test_each_component_has_pull_secrets_of_its_own_beside_the_common_ones(settings: Settings) -> None:
    made = render(
        settings, "--set=global.imagePullSecrets[0].name=all", "--set=monitor.image.pullSecrets[0].name=monitors"
    )
    named = {component: [one["name"] for one in pod["imagePullSecrets"]] for component, pod in made.pods().items()}
    assert named == {"webhook": ["all"], "libsync": ["all"], "monitor": ["all", "monitors"]}


@pytest.mark.parametrize("value", ["preset", "paths", "webhook", "librarySync", "monitor", "global"])
def test_a_group_of_values_that_is_null_is_refused_by_its_name(settings: Settings, value: str) -> None:
    with pytest.raises(RefusedError, match=rf"missing propert\w+:? '{value}'|{value} is required"):
        render(settings, f"--set={value}=null")


def _notes(cluster: Cluster, *values: str) -> str:
    """What helm says after an installation; nothing is installed."""
    command = ["install", "notes", str(CHART), "--namespace=notes", "--dry-run=client"]
    return cluster.helm(*command, *(f"--set={value}" for value in values)).partition("\nNOTES:\n")[2]


def test_notes_verify_in_two_commands_and_warn_of_nothing_by_default(api_server: Cluster) -> None:
    notes = _notes(api_server)
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    prefix = "notes-kai-resource-isolator"
    assert commands == [
        f"kubectl -n notes rollout status daemonset/{prefix}-libsync deployment/{prefix}-webhook",
        "helm test notes -n notes --logs",
    ]
    assert "WARNING" not in notes
    assert "Uninstalling leaves /var/lib/kai-resource-isolator on the nodes" in notes


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("webhook.failurePolicy=Ignore", "start WITHOUT a limit"),
        ("webhook.replicaCount=1", "pods with a share are refused"),
        ("policies.enabled=false", "can raise its share"),
        ("policies.exemptGroups={system:masters}", "system:masters"),
        ("monitor.enabled=false", "is seen by nobody"),
        ("webhook.hardening.bypass=ignore", "without a word"),
        ("webhook.excludedNamespaces={a,b}", "the namespaces a, b"),
        ("webhook.podDisruptionBudget.maxUnavailable=0", "can be drained"),
        ("webhook.podDisruptionBudget.minAvailable=2", "can be drained"),
        ("rbac.create=false", "must be given some other way"),
    ],
)
def test_notes_warn_of_each_value_that_takes_a_safeguard_away(api_server: Cluster, value: str, words: str) -> None:
    warnings = [part for part in _notes(api_server, value).split("\n\n") if part.startswith("WARNING: ")]
    assert len(warnings) == 1
    assert words in warnings[0]
