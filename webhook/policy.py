"""The decision about one pod: let it pass, put the enforcement in, or refuse it with a sentence.

Knows nothing of HTTP and does no I/O but asking `Namespaces` for labels.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

from webhook import bypass, conflicts, injection, names, patch, reasons
from webhook.config import Bypass, OptOut, OtherContainers, PodSecurity, Rules
from webhook.patch import Operation
from webhook.pod import Pod, mapping, text
from webhook.quantity import MIB, parse_limit
from webhook.reasons import Reason
from webhook.share import Denied, Share, asks_for_share, read_share, shown

_TRUE = ("true", "yes", "1")
_FALSE = ("false", "no", "0")
_LINUX = "linux"
# For all devices, and for one of them.
_LIMIT_NAME = re.compile(names.MEMORY_LIMIT_ENV + "(_[0-9]+)?")


class Namespaces(Protocol):
    """Labels of namespaces. None where they can't be known: then nothing is decided from them."""

    def labels(self, name: str) -> dict[str, str] | None:
        """Return the labels, from memory: a review waits for nothing."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning to the user who creates the pod."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done and why. `message` is the sentence of a denial; `operations` the JSON Patch of an injection."""

    reason: Reason
    message: str = ""
    operations: list[Operation] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    container: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the pod may be created."""
        return self.reason.outcome is not reasons.Outcome.DENIED


def decide(pod: Pod, namespace: str, rules: Rules, namespaces: Namespaces) -> Decision:
    """Return the decision about a pod that is being created in this namespace. Raises MalformedObjectError."""
    if not asks_for_share(pod):
        return Decision(reasons.NO_SHARE)
    if rules.schedulers and text(pod.spec, "schedulerName", "spec") not in rules.schedulers:
        return Decision(reasons.OTHER_SCHEDULER)
    if _operating_system(pod) != _LINUX:
        return Decision(reasons.OTHER_SYSTEM)
    try:
        opted_out = _opted_out(pod, namespace, rules, namespaces)
        if opted_out:
            warning = Warned(reasons.OPTED_OUT, f"{opted_out}: the share of this pod is not enforced")
            return Decision(reasons.OPTED_OUT, warnings=[warning])
        return _inject(pod, namespace, rules, namespaces)
    except Denied as denied:
        return Decision(denied.reason, denied.message)


def _operating_system(pod: Pod) -> str:
    named = text(mapping(pod.spec, "os", "spec"), "name", "spec.os")
    selected = text(mapping(pod.spec, "nodeSelector", "spec"), "kubernetes.io/os", "spec.nodeSelector")
    return named or selected or _LINUX


def _opted_out(pod: Pod, namespace: str, rules: Rules, namespaces: Namespaces) -> str:
    """Return what opts this pod out, nothing where it stays in. Raises Denied."""
    allowed = rules.opt_out is OptOut.EVERYONE or (
        rules.opt_out is OptOut.NAMESPACES and namespace in rules.opt_out_namespaces
    )
    value = pod.annotations.get(names.INJECT)
    if value is not None:
        word = value.strip().lower()
        if word in _FALSE and allowed:
            return f"annotation {names.INJECT} is {shown(value)}"
        if word in _FALSE:
            raise Denied(
                reasons.OPT_OUT_FORBIDDEN,
                f"annotation {names.INJECT} is {shown(value)}, and pods of namespace {shown(namespace)} may not opt "
                "out of the enforcement of their share: remove the annotation, or ask the administrator of the webhook",
            )
        if word not in _TRUE:
            raise Denied(
                reasons.OPT_OUT_INVALID,
                f'annotation {names.INJECT} is {shown(value)}, and it must be "false" (or "no", "0") to opt out or '
                '"true" (or "yes", "1") to stay in: correct or remove it',
            )
    if allowed and (namespaces.labels(namespace) or {}).get(names.NAMESPACE_LABEL) == names.NAMESPACE_IGNORE:
        return f"label {names.NAMESPACE_LABEL} of namespace {shown(namespace)} is {shown(names.NAMESPACE_IGNORE)}"
    return ""


def _inject(pod: Pod, namespace: str, rules: Rules, namespaces: Namespaces) -> Decision:
    share = read_share(pod)
    _refuse_whole_gpu(pod)
    _refuse_sandbox(pod, rules)
    if rules.pod_security is PodSecurity.DENY:
        _refuse_pod_security(namespace, namespaces)
    wanted = injection.build(pod, share, rules.library_base)
    conflicts.check(pod, share, wanted)
    warnings = [warning for check in _WARNINGS for warning in check(pod, share)]
    warnings += _bypass(pod, share, rules)
    result = patch.build(pod, share, wanted)
    if rules.other_containers is OtherContainers.HIDE_GPU:
        patch.hide_gpu(result, [container for container in pod.all_containers if container is not share.target])
    if rules.seccomp_runtime_default:
        warnings += _seccomp(result, pod, share)
    reason = reasons.COMPLETED if result.found else reasons.INJECTED
    if not result.operations:
        reason = reasons.ALREADY_INJECTED
    return Decision(reason, "", result.operations, warnings, share.target.name)


def _refuse_whole_gpu(pod: Pod) -> None:
    for container in pod.all_containers:
        resources = mapping(container.raw, "resources", container.where)
        for kind in ("limits", "requests"):
            for name, amount in mapping(resources, kind, f"{container.where}.resources").items():
                if name.startswith(names.GPU_RESOURCE_PREFIXES) and str(amount).strip() not in ("", "0"):
                    raise Denied(
                        reasons.WHOLE_GPU,
                        f"container {shown(container.name)} has {kind[:-1]} {shown(name)}: {shown(str(amount))} beside "
                        "the pod's share of a GPU, and a pod has one or the other: remove the resource, or the "
                        "annotation gpu-memory or gpu-fraction",
                    )


def _refuse_sandbox(pod: Pod, rules: Rules) -> None:
    name = text(pod.spec, "runtimeClassName", "spec")
    if name and _matches(name, rules.sandboxed_runtime_classes):
        raise Denied(
            reasons.RUNTIME_SANDBOXED,
            f"spec.runtimeClassName is {shown(name)}, which runs containers in a sandbox where a share can't be "
            "enforced: use the cluster's ordinary NVIDIA runtime class, or a whole GPU instead of a share",
        )


@lru_cache
def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _refuse_pod_security(namespace: str, namespaces: Namespaces) -> None:
    level = (namespaces.labels(namespace) or {}).get(names.POD_SECURITY_ENFORCE)
    if level not in ("baseline", "restricted"):
        return
    raise Denied(
        reasons.POD_SECURITY,
        f"namespace {shown(namespace)} has label {names.POD_SECURITY_ENFORCE}={level}, which refuses the hostPath "
        "volumes that bring the enforcing library: run the pod in a namespace labelled "
        f"{names.POD_SECURITY_ENFORCE}=privileged (audit and warn may stay at {level})",
    )


def _limit_warnings(pod: Pod, share: Share) -> list[Warned]:
    found = []
    trusted = share.trusted_config_map(pod)
    for name in filter(_LIMIT_NAME.fullmatch, share.target.env):
        entry = share.target.env[name]
        value = entry.get("value")
        reference = injection.config_map_key(entry)
        if reference is not None and reference != trusted:
            message = f"{name} comes from ConfigMap {shown(reference)}, which isn't KAI's: it can only lower the limit"
            found.append(Warned(reasons.LIMIT_REFERENCE_FOREIGN, message))
        elif isinstance(value, str) and "$(" not in value and entry.get("valueFrom") is None:
            found += _literal_limit(name, value, share)
    return found


def _literal_limit(name: str, value: str, share: Share) -> list[Warned]:
    try:
        limit = parse_limit(value)
    except ValueError:
        message = f"{name} is {shown(value)}, not a size such as 2048m: CUDA will not start in this container"
        return [Warned(reasons.LIMIT_UNREADABLE, message)]
    if limit is not None and share.memory_mib is not None and (limit == 0 or limit > share.memory_mib * MIB):
        message = f"{name} is {shown(value)}, above the share of {share.memory_mib} MiB: no effect, it can only lower"
        return [Warned(reasons.LIMIT_ABOVE_SHARE, message)]
    return []


def _control_warnings(_pod: Pod, share: Share) -> list[Warned]:
    if names.DISABLE_CONTROL_ENV not in share.target.env:
        return []
    message = f"{names.DISABLE_CONTROL_ENV} has no effect: container {shown(share.target.name)} keeps its share"
    return [Warned(reasons.CONTROL_IGNORED, message)]


_WARNINGS: tuple[Callable[[Pod, Share], list[Warned]], ...] = (_limit_warnings, _control_warnings)


def _bypass(pod: Pod, share: Share, rules: Rules) -> list[Warned]:
    found = [] if rules.bypass is Bypass.IGNORE else bypass.find(pod, share, rules.library_base)
    if not found:
        return []
    what = f"container {shown(share.target.name)} has {', '.join(found)}"
    if rules.bypass is Bypass.DENY:
        raise Denied(
            reasons.BYPASS_DENIED,
            f"{what}, with which it can get round its share of the GPU, and the administrator refuses that: drop it, "
            "or use a whole GPU instead of a share",
        )
    return [Warned(reasons.BYPASS_POSSIBLE, f"{what}: it can get round its share of the GPU")]


def _seccomp(result: patch.Patch, pod: Pod, share: Share) -> list[Warned]:
    own = share.target.security.get("seccompProfile")
    profile = own or mapping(pod.spec, "securityContext", "spec").get("seccompProfile")
    if profile is None:
        patch.default_seccomp(result, share.target)
    elif isinstance(profile, dict) and profile.get("type") == "Unconfined":
        message = f"container {shown(share.target.name)} runs with seccomp Unconfined: it can get round its share"
        return [Warned(reasons.SECCOMP_UNCONFINED, message)]
    return []
