"""Every case folder, decided and patched directly."""

import copy

import pytest

from tests.webhook import cases
from tests.webhook.cases import Case
from webhook import injection, reasons
from webhook.pod import Object

CASES = cases.load()
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
INJECTED = [case for case in CASES if case.decide().operations]
each_injected = pytest.mark.parametrize("case", INJECTED, ids=lambda case: case.name)

# What only says something about the cases as a whole needs a number: this many shapes and mistakes are covered.
LEAST_CASES = 80


@each_case
def test_decision_and_sentences_are_as_expected(case: Case) -> None:
    """Reason, HTTP code, the sentence of a denial and the warnings."""
    assert cases.outcome(case.decide()) == case.read("expected.yaml")


@each_injected
def test_patched_pod_is_as_expected(case: Case) -> None:
    """The whole pod after the patch, applied by an independent RFC 6902 implementation."""
    assert cases.mutate(case.pod, case.decide()) == case.read("mutated.yaml")


@each_injected
def test_patch_only_adds(case: Case) -> None:
    """What the user wrote stays as it is and in its order."""
    patched = cases.mutate(case.pod, case.decide())
    assert {operation["op"] for operation in case.decide().operations} == {"add"}
    assert _without_ours(patched, case) == _without_ours(case.pod, case)


@each_injected
def test_second_call_changes_nothing(case: Case) -> None:
    """Our own output fed back in is complete."""
    decision = case.decide(cases.mutate(case.pod, case.decide()))
    assert (decision.reason, decision.operations) == (reasons.ALREADY_INJECTED, [])


@each_case
def test_deciding_leaves_the_pod_alone(case: Case) -> None:
    """The object of the request is only read."""
    before = copy.deepcopy(case.pod)
    case.decide()
    assert case.pod == before


@each_case
def test_each_file_of_a_case_is_used(case: Case) -> None:
    """A file that nothing reads would look like a check and be none."""
    assert {path.name for path in case.folder.iterdir()} == case.files()


def test_there_are_enough_cases() -> None:
    """And a case for each reason that a pod can bring about."""
    assert len(CASES) >= LEAST_CASES
    seen = {reason for case in CASES for reason in _reasons(case)}
    assert {reason.code for reason in reasons.ALL} - seen == {reasons.NOT_A_CREATION.code}


def _reasons(case: Case) -> set[str]:
    decision = case.decide()
    return {decision.reason.code} | {warned.reason.code for warned in decision.warnings}


OUR_ENV = {"CUDA_DEVICE_MEMORY_LIMIT", "POD_UID", "CONTAINER_NAME", "NVIDIA_VISIBLE_DEVICES"}


def _without_ours(pod: Object, case: Case) -> Object:
    """Take away what the injection may add; absent, null and empty lists are one."""
    rest = copy.deepcopy(pod)
    rest["metadata"]["annotations"].pop("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes", None)
    target = case.decide().container
    rest["spec"]["volumes"] = _foreign(rest["spec"].get("volumes"))
    for group in ("containers", "initContainers"):
        for container in rest["spec"].get(group) or []:
            hides = "other-containers" in case.flags
            if container["name"] == target or hides:
                container["env"] = [one for one in container.get("env") or [] if one["name"] not in OUR_ENV]
            if container["name"] == target:
                container["volumeMounts"] = _foreign(container.get("volumeMounts"))
                if "seccomp-runtime-default" in case.flags:
                    context = container.setdefault("securityContext", {})
                    context.pop("seccompProfile", None)
    return rest


def _foreign(entries: list[Object] | None) -> list[Object]:
    return [entry for entry in entries or [] if entry["name"] not in injection.OUR_VOLUMES]
