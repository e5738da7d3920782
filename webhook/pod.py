"""A pod as it came in, read with care: what is absent or null reads as empty, what has the wrong type is an error.

Nothing here changes the pod.
"""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


class MalformedObjectError(ValueError):
    """The object isn't a pod as the API server would send it: an error of the request, not a decision."""


def mapping(parent: Object, key: str, where: str) -> Object:
    """Return the object under `key`, an empty one where there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedObjectError(f"{where}.{key} is not an object")
    return value


def objects(parent: Object, key: str, where: str) -> list[Object]:
    """Return the list of objects under `key`, an empty one where there is none."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise MalformedObjectError(f"{where}.{key} is not a list of objects")
    return value


def text(parent: Object, key: str, where: str) -> str:
    """Return the text under `key`, an empty one where there is none."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedObjectError(f"{where}.{key} is not a string")
    return value


def texts(parent: Object, key: str, where: str) -> dict[str, str]:
    """Return the map of texts under `key` (annotations, labels)."""
    value = mapping(parent, key, where)
    if not all(isinstance(entry, str) for entry in value.values()):
        raise MalformedObjectError(f"{where}.{key} has a value that is not a string")
    return value


@dataclass(frozen=True, slots=True)
class Container:
    """One container: `group` is the list it stands in, `index` its place there."""

    group: str
    index: int
    raw: Object

    @property
    def where(self) -> str:
        """Path for messages about malformed objects."""
        return f"spec.{self.group}[{self.index}]"

    @property
    def path(self) -> str:
        """JSON Pointer to the container."""
        return f"/spec/{self.group}/{self.index}"

    @property
    def name(self) -> str:
        """Name, unique in the pod."""
        return text(self.raw, "name", self.where)

    @property
    def env(self) -> list[Object]:
        """Variables in their order."""
        return objects(self.raw, "env", self.where)

    @property
    def mounts(self) -> list[Object]:
        """Volume mounts in their order."""
        return objects(self.raw, "volumeMounts", self.where)

    @property
    def devices(self) -> list[Object]:
        """Block devices, which lie at a path as mounts do."""
        return objects(self.raw, "volumeDevices", self.where)

    @property
    def security(self) -> Object:
        """Security context of the container."""
        return mapping(self.raw, "securityContext", self.where)

    def variable(self, name: str) -> Object | None:
        """Return the entry that holds for this name: the last one wins, as in the container."""
        return next((entry for entry in reversed(self.env) if entry.get("name") == name), None)


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that decisions are made from, checked once."""

    raw: Object
    annotations: dict[str, str]
    spec: Object
    containers: list[Container]
    init_containers: list[Container]
    volumes: list[Object]

    @classmethod
    def read(cls, raw: Object) -> "Pod":
        """Check the pod's shape. Raises MalformedObjectError."""
        spec = mapping(raw, "spec", "pod")
        pod = cls(
            raw=raw,
            annotations=texts(mapping(raw, "metadata", "pod"), "annotations", "metadata"),
            spec=spec,
            containers=[Container("containers", i, c) for i, c in enumerate(objects(spec, "containers", "spec"))],
            init_containers=[
                Container("initContainers", i, c) for i, c in enumerate(objects(spec, "initContainers", "spec"))
            ],
            volumes=objects(spec, "volumes", "spec"),
        )
        if not pod.containers:
            raise MalformedObjectError("spec.containers is empty")
        return pod

    @property
    def all_containers(self) -> list[Container]:
        """Init containers first, as KAI looks for names."""
        return [*self.init_containers, *self.containers]

    def volume(self, name: str) -> tuple[int, Object] | None:
        """Return the volume of this name and its place in the list."""
        return next(((i, volume) for i, volume in enumerate(self.volumes) if volume.get("name") == name), None)
