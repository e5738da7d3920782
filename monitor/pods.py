"""The pods of this node, as far as the monitor needs them: values, made from the API's objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from monitor import names
from monitor.quota import Share, parse_fraction, parse_memory

ENDED = ("Succeeded", "Failed")
HASH_ANNOTATION = "kubernetes.io/config.hash"  # a static pod's folder and control group carry this instead of the uid


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `containers` maps names to the runtime's ids (empty before the start)."""

    uid: str
    namespace: str
    name: str
    containers: Mapping[str, str] = field(default_factory=dict)
    share: Share | None = None
    injected: bool = False
    gpu_groups: tuple[str, ...] = ()
    reserved_uuid: str = ""

    def container_of(self, container_id: str) -> str:
        """Name the container with that id; the only one if there is but one; else the empty string."""
        for name, known in self.containers.items():
            if container_id and known == container_id:
                return name
        return next(iter(self.containers)) if len(self.containers) == 1 else ""


class PodSource(Protocol):
    """Whoever knows this node's pods: by uid. Raises OSError or ValueError where it can't tell now."""

    def read(self) -> Mapping[str, Pod]:
        """Give the living pods as they are known now."""
        ...


def living(item: Mapping[str, Any]) -> bool:
    """Whether the pod's containers may still run. One being deleted lives until its object goes."""
    return _map(item, "status").get("phase") not in ENDED


def from_object(item: Mapping[str, Any]) -> Pod:
    """Read a v1 Pod object. Raises ValueError if it has no uid, namespace or name."""
    metadata, spec, status = _map(item, "metadata"), _map(item, "spec"), _map(item, "status")
    uid, namespace, name = (metadata.get(key) for key in ("uid", "namespace", "name"))
    if not (uid and name):
        raise ValueError("a pod without uid or name")
    annotations, labels = _map(metadata, "annotations"), _map(metadata, "labels")
    init, main = _list(spec, "initContainers"), _list(spec, "containers")
    containers = {c["name"]: "" for c in (*init, *main)}
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for entry in _list(status, kind):
            containers[entry["name"]] = (entry.get("containerID") or "").rpartition("//")[2]
    groups = (
        value if key == names.LABEL_GPU_GROUP else key.partition("/")[2]
        for key, value in labels.items()
        if key.partition("/")[0] == names.LABEL_GPU_GROUP
    )
    return Pod(
        uid=annotations.get(HASH_ANNOTATION) or uid,
        namespace=namespace or "default",
        name=name,
        containers=containers,
        share=_share(annotations, [c["name"] for c in init], [c["name"] for c in main]),
        injected=any(volume.get("name") == names.VOLUME_PRELOAD for volume in _list(spec, "volumes")),
        gpu_groups=tuple(sorted(set(groups))),
        reserved_uuid=annotations.get(names.ANNOTATION_RESERVED_UUID) or "",
    )


def _share(annotations: Mapping[str, str], init: list[str], main: list[str]) -> Share | None:
    memory = parse_memory(annotations.get(names.ANNOTATION_MEMORY) or "")
    fraction = parse_fraction(annotations.get(names.ANNOTATION_FRACTION) or "")
    if (memory is None and fraction is None) or not main:
        return None
    wanted = annotations.get(names.ANNOTATION_CONTAINER)
    target = wanted if wanted and wanted in (*init, *main) else main[0]
    devices = annotations.get(names.ANNOTATION_DEVICES) or "1"
    return Share(target, memory, fraction, int(devices) if devices.isdecimal() else 1)


def _map(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return item.get(key) or {}


def _list(item: Mapping[str, Any], key: str) -> list[Any]:
    return item.get(key) or []
