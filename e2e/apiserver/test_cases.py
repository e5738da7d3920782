"""Every case of tests/webhook/cases, posted to the API server: what arrives in storage, what the client is told."""

import json
import time
from collections import defaultdict
from typing import Any

import pytest

from e2e.apiserver.replicas import TENANTS, Release
from tests.webhook import cases
from tests.webhook.cases import Case

CASES = cases.load()
# Cases that the API server itself decides before or after us, and how.
NOT_CALLED = {"opt-out-by-namespace"}  # the configuration's namespaceSelector keeps the namespace away
REFUSED_BY_POD_SECURITY = {"pod-security-ignored"}  # this API server exempts nobody
WATCH_SECONDS = 15
Circumstances = tuple[str, str]


def circumstances(case: Case) -> Circumstances:
    """Cases of the same settings and labels share one server."""
    return json.dumps(case.flags, sort_keys=True), json.dumps(case.namespace_labels, sort_keys=True)


GROUPS: dict[Circumstances, list[Case]] = defaultdict(list)
for _case in CASES:
    GROUPS[circumstances(_case)].append(_case)


def chart_values(flags: dict[str, str]) -> dict[str, str]:
    """The settings that show in the webhook configuration too."""
    values = {"webhook.optOut.allowed": flags.get("opt-out", "everyone")}
    if "opt-out-namespaces" in flags:
        values["webhook.optOut.namespaces"] = "{" + flags["opt-out-namespaces"] + "}"  # helm's way to write a list
    return values


def label(release: Release, labels: dict[str, str]) -> None:
    keys = ("kai-resource-isolator.io/webhook", "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn")
    wanted = {key: labels.get(key) for key in keys}
    status, answer = release.cluster.request(
        "PATCH",
        f"/api/v1/namespaces/{TENANTS}",
        {"metadata": {"labels": wanted}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert status == 200, answer


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_cases_arrive_in_storage_as_expected(release: Release, group: Circumstances) -> None:
    found = GROUPS[group]
    flags = [f"--{name}={value}" for name, value in found[0].flags.items()]
    release.install(chart_values(found[0].flags))
    label(release, {})
    with release.serving(*flags):
        label(release, found[0].namespace_labels)
        try:
            failures = {case.name: failure for case in found if (failure := judge_until_seen(release, case))}
        finally:
            label(release, {})
    assert failures == {}


def judge_until_seen(release: Release, case: Case) -> str:
    """Labels of the namespace reach the webhook by a watch: with such a case the first answer may come too early."""
    limit = time.monotonic() + (WATCH_SECONDS if case.namespace_labels else 0)
    while (failure := judge(release, case)) and time.monotonic() < limit:
        time.sleep(0.1)
    return failure


def judge(release: Release, case: Case) -> str:
    """Return what is wrong, nothing where all is right."""
    pod = {**case.pod, "metadata": {**case.pod["metadata"]}}
    status, answer = release.post(pod, dry_run=False)
    if status == 201:
        path = f"/api/v1/namespaces/{TENANTS}/pods/{answer['metadata']['name']}"
        stored = release.cluster.get(path)
        release.cluster.request("DELETE", path + "?gracePeriodSeconds=0")
        return _judge_stored(case, stored, answer.get("httpWarnings", []))
    return _judge_refusal(case, status, answer)


def _judge_refusal(case: Case, status: int, answer: dict[str, Any]) -> str:
    expected = case.read("expected.yaml").get("status")
    message = str(answer.get("message"))
    if case.name in REFUSED_BY_POD_SECURITY:
        return "" if "violates PodSecurity" in message else f"refused otherwise: {message}"
    if expected is None:
        return f"refused: {status} {message}"
    if (status, answer.get("reason")) != (expected["code"], expected["reason"]):
        return f"refused with {status} {answer.get('reason')}"
    return "" if message.endswith(expected["message"]) else f"another sentence: {message}"


def _judge_stored(case: Case, stored: dict[str, Any], warnings: list[str]) -> str:
    expected = case.read("expected.yaml")
    if "status" in expected or case.name in REFUSED_BY_POD_SECURITY:
        return "stored, and should have been refused"
    if not contains(stored["spec"], (case.read("mutated.yaml") or case.pod)["spec"]):
        return f"stored otherwise: {json.dumps(stored['spec'])}"
    if not contains(stored["metadata"], (case.read("mutated.yaml") or case.pod)["metadata"]):
        return f"stored otherwise: {json.dumps(stored['metadata'])}"
    told = [warning.removeprefix('299 - "').removesuffix('"').replace('\\"', '"') for warning in warnings]
    missing = [one for one in expected.get("warnings", []) if one not in told and case.name not in NOT_CALLED]
    return f"warnings not told: {missing}, only {told}" if missing else ""


def contains(stored: Any, expected: Any) -> bool:
    """Whether all of `expected` is in `stored`, lists in their order; the API server adds defaults and its token."""
    if expected in (None, [], {}, "", False):
        return stored in (None, [], {}, "", False)
    if isinstance(expected, dict):
        return isinstance(stored, dict) and all(contains(stored.get(key), value) for key, value in expected.items())
    if isinstance(expected, list):
        rest = [one for one in stored if one in expected or not _is_default(one)]
        return len(rest) == len(expected) and all(map(contains, rest, expected))
    return str(stored) == str(expected)


def _is_default(entry: Any) -> bool:
    """The token's volume and mount, and the tolerations that every pod gets."""
    if not isinstance(entry, dict):
        return False
    if str(entry.get("key")).startswith("node.kubernetes.io/"):
        return True
    return str(entry.get("name")).startswith("kube-api-access-") and entry["name"] != "kube-api-access-zcrnp"


CONTAINER = {"name": "main", "image": "registry.example/cuda:12"}
# What the webhook needs no rule for: pod spec, and the API server's own word about it.
REFUSED_BY_THE_API_SERVER = {
    "two containers of one name": ({"initContainers": [CONTAINER], "containers": [CONTAINER]}, "Duplicate value"),
    "two volumes of one name": (
        {"volumes": [{"name": "own", "emptyDir": {}}] * 2, "containers": [CONTAINER]},
        "Duplicate value",
    ),
    "an ephemeral container at creation": (
        {"containers": [CONTAINER], "ephemeralContainers": [{**CONTAINER, "name": "debugger"}]},
        "cannot be set on create",
    ),
}


def test_api_server_itself_refuses_what_the_webhook_lets_through(release: Release) -> None:
    """No pod in which a name could mean two things, or a container be added that nobody looked at, is ever stored."""
    release.install({})
    with release.serving():
        for what, (spec, word) in REFUSED_BY_THE_API_SERVER.items():
            share = {"metadata": {"name": "job", "annotations": {"gpu-memory": "4096"}}, "spec": spec}
            status, answer = release.post(share)
            assert (status, word in answer["message"]) == (422, True), f"{what}: {status} {answer.get('message')}"
