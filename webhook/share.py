"""What a pod asks for, in KAI Scheduler's annotations, and which container and ConfigMap KAI means."""

from dataclasses import dataclass
from json import dumps

from webhook import names, reasons
from webhook.pod import Container, Pod
from webhook.quantity import parse_fraction, parse_memory_mib, parse_positive
from webhook.reasons import Reason

_MAX_DEVICES = 1024
_SHOWN_CHARACTERS = 60


class Denied(Exception):  # noqa: N818 (an answer to the user, not a failure)
    """The pod must not be created: the reason, and a sentence that says what, why and what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def shown(value: str) -> str:
    """Return the value quoted, in ASCII (so that full-width digits show as what they are) and cut to a line."""
    cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
    return dumps(cut)


@dataclass(frozen=True, slots=True)
class Share:
    """A valid request: exactly one of `memory_mib` and `fraction` is set; `target` is the container KAI picks."""

    memory_mib: int | None
    fraction: float | None
    target: Container

    def trusted_config_map(self, pod: Pod) -> str | None:
        """Return the one ConfigMap name that KAI gives this container's limit, None before KAI saw the pod."""
        base = pod.annotations.get(names.KAI_CONFIG_MAP)
        if not base:
            return None
        prefix = "i" if self.target.group == "initContainers" else ""
        return f"{base}-{prefix}{self.target.index}"


def asks_for_share(pod: Pod) -> bool:
    """Return whether the pod has one of the two annotations, however malformed."""
    return names.GPU_MEMORY in pod.annotations or names.GPU_FRACTION in pod.annotations


def read_share(pod: Pod) -> Share:
    """Return the share that the pod asks for. Raises Denied where an annotation can't be understood."""
    memory, fraction = pod.annotations.get(names.GPU_MEMORY), pod.annotations.get(names.GPU_FRACTION)
    if memory is not None and fraction is not None:
        raise Denied(
            reasons.BOTH_SHARES,
            f"annotations gpu-memory ({shown(memory)}) and gpu-fraction ({shown(fraction)}) are both set, and a pod "
            "has one share: remove one of them",
        )
    memory_mib = None if memory is None else parse_memory_mib(memory)
    if memory is not None and memory_mib is None:
        raise Denied(
            reasons.GPU_MEMORY_INVALID,
            f"annotation gpu-memory is {shown(memory)}, and it must be a positive whole number of MiB in plain digits, "
            'without a unit: write "4096" for 4 GiB',
        )
    part = None if fraction is None else parse_fraction(fraction)
    if fraction is not None and part is None:
        raise Denied(
            reasons.GPU_FRACTION_INVALID,
            f"annotation gpu-fraction is {shown(fraction)}, and it must be a plain decimal above 0 and below 1: write "
            '"0.5" for half a GPU; for a whole one remove the annotation and use the resource nvidia.com/gpu',
        )
    _check_devices(pod)
    return Share(memory_mib, part, _target(pod))


def _check_devices(pod: Pod) -> None:
    devices = pod.annotations.get(names.GPU_DEVICES)
    if devices is not None and parse_positive(devices, _MAX_DEVICES) is None:
        raise Denied(
            reasons.DEVICES_INVALID,
            f"annotation gpu-fraction-num-devices is {shown(devices)}, and it must be a whole number from 1 to "
            f'{_MAX_DEVICES}: write "2" for two devices, or remove it for one',
        )


def _target(pod: Pod) -> Container:
    name = pod.annotations.get(names.GPU_CONTAINER)
    if name is None:
        return pod.containers[0]
    for container in pod.all_containers:
        if container.name == name:
            return container
    known = ", ".join(container.name for container in pod.all_containers)
    raise Denied(
        reasons.CONTAINER_UNKNOWN,
        f"annotation gpu-fraction-container-name is {shown(name)}, and the pod has no such container (it has: "
        f"{known[:200]}): name one of them, or remove the annotation to mean the first container",
    )
