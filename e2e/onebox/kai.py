"""What KAI Scheduler does to a pod with a share: at admission to its spec, at binding by the ConfigMap with the limit.

As watched on KAI v0.16 to v0.17. Its sum has holes (no label on the node, a share that rounds to 0.00): the pod is
bound all the same, without a limit.
"""

import copy
import hashlib
import math
from collections.abc import Mapping
from typing import Any

SCHEDULER = "kai-scheduler"
GPU_MEMORY, GPU_FRACTION, CONTAINER_NAME = "gpu-memory", "gpu-fraction", "gpu-fraction-container-name"
CONFIG_MAP = "runai/shared-gpu-configmap"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
_FROM_CONFIG_MAP = ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")


def wants_share(pod: Mapping[str, Any]) -> bool:
    """Whether it is KAI's pod and asks for a part of a GPU."""
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"].get("schedulerName") == SCHEDULER and (GPU_MEMORY in annotations or GPU_FRACTION in annotations)


def admit(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod after KAI's admission webhook; the same again for a pod that it has seen."""
    changed: dict[str, Any] = copy.deepcopy(dict(pod))
    if not wants_share(pod):
        return changed
    annotations = changed["metadata"].setdefault("annotations", {})
    # Seven characters that are random there; here they are the same for the same pod.
    tail = hashlib.sha256(changed["metadata"]["name"].encode()).hexdigest()[:7]
    base = annotations.setdefault(CONFIG_MAP, f"{changed['metadata']['name'][:40]}-{tail}-shared-gpu")
    container, suffix = target(changed)
    name = f"{base}-{suffix}"
    references: dict[str, dict[str, Any]] = {key: {"name": name, "key": key} for key in _FROM_CONFIG_MAP}
    references[LIMIT] = {"name": name, "key": LIMIT, "optional": True}
    kept = [entry for entry in container.get("env", []) if entry["name"] not in references]
    container["env"] = [
        *kept,
        *({"name": key, "valueFrom": {"configMapKeyRef": reference}} for key, reference in references.items()),
    ]
    others = container.setdefault("envFrom", [])
    own = {"configMapRef": {"name": f"{name}-evar", "optional": False}}
    if own not in others:
        others.append(own)
    volumes = changed["spec"].setdefault("volumes", [])
    volume = {"name": f"{name}-vol", "configMap": {"name": name, "defaultMode": 0o644}}
    if volume not in volumes:
        volumes.append(volume)
    return changed


def target(pod: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The container that gets the share, and what the names of its ConfigMaps end in."""
    wanted = (pod["metadata"].get("annotations") or {}).get(CONTAINER_NAME)
    containers: list[dict[str, Any]] = pod["spec"]["containers"]
    if wanted is None:
        return containers[0], "0"
    for index, container in enumerate(pod["spec"].get("initContainers", [])):
        if container["name"] == wanted:
            return container, f"i{index}"
    for index, container in enumerate(containers):
        if container["name"] == wanted:
            return container, str(index)
    raise ValueError(f"no container is named {wanted}")


def bind(pod: Mapping[str, Any], label_mib: int | None, device_uuid: str) -> dict[str, dict[str, str]]:
    """The ConfigMaps that the binder writes, by name. `label_mib`: label nvidia.com/gpu.memory, if the node has it."""
    base = pod["metadata"]["annotations"][CONFIG_MAP]
    _, suffix = target(pod)
    portion = share(pod["metadata"]["annotations"], label_mib)
    shown = f"{portion:.2f}"
    data = {"NVIDIA_VISIBLE_DEVICES": device_uuid, "RUNAI_NUM_OF_GPUS": shown, "GPU_PORTION": shown}
    if label_mib is not None and portion > 0:
        data[LIMIT] = f"{label_mib * round(portion * 100) // 100}m"
    return {f"{base}-{suffix}": data, f"{base}-{suffix}-evar": {}}


def share(annotations: Mapping[str, str], label_mib: int | None) -> float:
    """KAI's share of a card, two decimals: memory rounded up (of the label floored to hundreds), a fraction rounded."""
    if GPU_FRACTION in annotations:
        return round(float(annotations[GPU_FRACTION]), 2)
    if label_mib is None:
        return 0.0
    return min(1.0, math.ceil(int(annotations[GPU_MEMORY]) * 100 / (label_mib // 100 * 100)) / 100)
