"""Every decision of the webhook and every warning, by code.

The code is the same in the log, the answer to the API server (`status.reason` of a denial, the audit annotation
`reason`), the label `reason` of the metrics and the table in webhook/README.md, which a test compares with this one.
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What happened to the pod: label `decision` of the metrics."""

    INJECTED = "injected"
    UNCHANGED = "unchanged"
    DENIED = "denied"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: `status` is the HTTP code inside a denial, 200 for everything that lets the pod pass."""

    code: str
    outcome: Outcome
    status: int
    meaning: str
    remedy: str = ""


_TABLE: dict[str, Reason] = {}


def _add(code: str, outcome: Outcome, meaning: str, remedy: str = "", status: int = 200) -> Reason:
    reason = _TABLE[code] = Reason(code, outcome, status, meaning, remedy)
    return reason


def _denied(code: str, status: int, meaning: str, remedy: str) -> Reason:
    return _add(code, Outcome.DENIED, meaning, remedy, status)


INJECTED = _add("Injected", Outcome.INJECTED, "The pod asks for a share and got everything that enforces it.")
COMPLETED = _add(
    "Completed",
    Outcome.INJECTED,
    "A part was there already and the rest was added: the second call after KAI named its ConfigMap, or a manifest "
    "copied from an injected pod.",
)

ALREADY_INJECTED = _add("AlreadyInjected", Outcome.UNCHANGED, "Everything was there already.")
NO_SHARE = _add("NoShare", Outcome.UNCHANGED, "Neither gpu-memory nor gpu-fraction is among the annotations.")
OPTED_OUT = _add(
    "OptedOut",
    Outcome.UNCHANGED,
    "Pod annotation or namespace label opts out, and the administrator allows it. The share is not enforced.",
    "Remove the opt-out to have the share enforced.",
)
OTHER_SCHEDULER = _add(
    "OtherScheduler", Outcome.UNCHANGED, "The webhook is narrowed to a list of schedulers and this pod names another."
)
OTHER_SYSTEM = _add("OtherOperatingSystem", Outcome.UNCHANGED, "The pod is for Windows or another system than Linux.")
NOT_A_CREATION = _add(
    "NotAPodCreation",
    Outcome.UNCHANGED,
    "Not the creation of a pod: only then can volumes be added.",
    "Let the webhook configuration send CREATE of pods only.",
)

GPU_MEMORY_INVALID = _denied(
    "GpuMemoryInvalid", 400, "gpu-memory isn't a positive whole number of MiB.", "Write MiB without a unit: 4096."
)
GPU_FRACTION_INVALID = _denied(
    "GpuFractionInvalid",
    400,
    "gpu-fraction isn't a plain decimal between 0 and 1.",
    "Write a number such as 0.5; for a whole GPU use the resource nvidia.com/gpu instead.",
)
BOTH_SHARES = _denied(
    "GpuMemoryAndFraction", 400, "gpu-memory and gpu-fraction are both set.", "Keep one of the two annotations."
)
DEVICES_INVALID = _denied(
    "GpuDevicesInvalid", 400, "gpu-fraction-num-devices isn't a positive whole number.", "Write a number such as 2."
)
CONTAINER_UNKNOWN = _denied(
    "ContainerUnknown",
    400,
    "gpu-fraction-container-name names no container of the pod.",
    "Name a container or init container of the pod, or remove the annotation to mean the first container.",
)
OPT_OUT_INVALID = _denied(
    "OptOutInvalid",
    400,
    "The annotation kai-resource-isolator.io/inject is neither true nor false.",
    'Write "false" to opt out, or remove the annotation.',
)
OPT_OUT_FORBIDDEN = _denied(
    "OptOutForbidden",
    403,
    "The pod opts out of enforcement and the administrator doesn't allow that here.",
    "Remove the annotation, or ask the administrator of the webhook.",
)
WHOLE_GPU = _denied(
    "WholeGpuBesideShare",
    400,
    "A container asks for a whole GPU or a MIG slice beside the share.",
    "Keep either the share's annotation or the resource.",
)
RUNTIME_SANDBOXED = _denied(
    "RuntimeSandboxed",
    403,
    "The runtime class runs containers in a sandbox where a preloaded library can't cap the card.",
    "Use the cluster's ordinary NVIDIA runtime class for pods with a share.",
)
POD_SECURITY = _denied(
    "PodSecurityEnforced",
    403,
    "The namespace enforces Pod Security baseline or restricted, which refuses the hostPath volumes that bring the "
    "library.",
    "Run pods with a share in a namespace labelled pod-security.kubernetes.io/enforce=privileged.",
)
VOLUME_TAKEN = _denied(
    "VolumeNameTaken",
    400,
    "A volume has one of our names but isn't what the webhook puts there.",
    "Rename the volume; in a manifest copied from a running pod remove all volumes and mounts named vgpu-*.",
)
MOUNT_TAKEN = _denied(
    "MountPathTaken",
    400,
    "The pod mounts something of its own at, or below, one of our paths, or mounts one of our volumes elsewhere.",
    "Mount it at another path.",
)
PARENT_READ_ONLY = _denied(
    "ParentReadOnly",
    400,
    "A read-only volume covers a parent of our paths, so the container could not start.",
    "Mount it deeper, or mount single files of it by subPath.",
)
QUOTA_SOURCE_FOREIGN = _denied(
    "QuotaSourceForeign",
    403,
    "The volume vgpu-quota names a ConfigMap that KAI didn't make for this container.",
    "Remove all volumes and mounts named vgpu-* and the annotation runai/shared-gpu-configmap from the manifest.",
)
BYPASS_DENIED = _denied(
    "BypassDenied",
    403,
    "The container has privileges or volumes with which it can get round the limit, and the administrator refuses "
    "that.",
    "Drop what the message names.",
)

LIMIT_ABOVE_SHARE = _add(
    "LimitAboveShare",
    Outcome.WARNING,
    "A literal CUDA_DEVICE_MEMORY_LIMIT is larger than the share. It is kept as written and has no effect.",
    "Remove the variable, or lower it.",
)
LIMIT_UNREADABLE = _add(
    "LimitUnreadable",
    Outcome.WARNING,
    "A literal CUDA_DEVICE_MEMORY_LIMIT is not a size. It is kept as written, and the library refuses to start CUDA.",
    "Write a whole number with k, m, g, t or Ki, Mi, Gi, Ti: 2048m.",
)
LIMIT_REFERENCE_FOREIGN = _add(
    "LimitReferenceForeign",
    Outcome.WARNING,
    "CUDA_DEVICE_MEMORY_LIMIT comes from a ConfigMap that isn't KAI's for this container. It can lower the limit, "
    "never raise it.",
    "Remove the variable; KAI adds its own.",
)
CONTROL_IGNORED = _add(
    "DisableControlIgnored",
    Outcome.WARNING,
    "CUDA_DISABLE_CONTROL is set and has no effect.",
    "Remove the variable; to opt out use the annotation kai-resource-isolator.io/inject.",
)
BYPASS_POSSIBLE = _add(
    "BypassPossible",
    Outcome.WARNING,
    "The container has privileges or volumes with which it can get round the limit.",
    "Drop what the message names.",
)
SECCOMP_UNCONFINED = _add(
    "SeccompUnconfined",
    Outcome.WARNING,
    "The administrator wants the seccomp profile RuntimeDefault and the pod sets another one, which is kept.",
    "Remove the pod's own seccompProfile.",
)

ALL: tuple[Reason, ...] = tuple(_TABLE.values())
