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
    if not isinstance(value, list):
        raise MalformedObjectError(f"{where}.{key} is not a list")
    for entry in value:
        if not isinstance(entry, dict):
            raise MalformedObjectError(f"{where}.{key} has an entry that is not an object")
    return value


def named(parent: Object, key: str, where: str) -> dict[str, Object]:
    """Return the list of objects under `key` by their names, the last of a name: for variables the one that holds."""
    found: dict[str, Object] = {}
    for entry in objects(parent, key, where):
        name = entry.get("name", "")
        if not isinstance(name, str):
            raise MalformedObjectError(f"{where}.{key} has an entry whose name is not a string")
        found[name] = entry
    return found


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
    for entry in value.values():
        if not isinstance(entry, str):
            raise MalformedObjectError(f"{where}.{key} has a value that is not a string")
    return value


@dataclass(frozen=True, slots=True)
class Container:
    """One container: `group` is the list it stands in, `index` its place there. The rest is read from `raw` once."""

    group: str
    index: int
    raw: Object
    name: str
    env: dict[str, Object]
    mounts: list[Object]
    devices: list[Object]
    security: Object

    @classmethod
    def read(cls, group: str, index: int, raw: Object) -> "Container":
        """Check the container's shape. Raises MalformedObjectError."""
        where = f"spec.{group}[{index}]"
        return cls(
            group=group,
            index=index,
            raw=raw,
            name=text(raw, "name", where),
            env=named(raw, "env", where),
            mounts=objects(raw, "volumeMounts", where),
            devices=objects(raw, "volumeDevices", where),
            security=mapping(raw, "securityContext", where),
        )

    @property
    def where(self) -> str:
        """Path for messages about malformed objects."""
        return f"spec.{self.group}[{self.index}]"

    @property
    def path(self) -> str:
        """JSON Pointer to the container."""
        return f"/spec/{self.group}/{self.index}"


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that decisions are made from, checked once."""

    raw: Object
    annotations: dict[str, str]
    spec: Object
    containers: list[Container]
    init_containers: list[Container]
    volumes: dict[str, Object]

    @classmethod
    def read(cls, raw: Object) -> "Pod":
        """Check the pod's shape. Raises MalformedObjectError."""
        spec = mapping(raw, "spec", "pod")
        pod = cls(
            raw=raw,
            annotations=texts(mapping(raw, "metadata", "pod"), "annotations", "metadata"),
            spec=spec,
            containers=_containers(spec, "containers"),
            init_containers=_containers(spec, "initContainers"),
            volumes=named(spec, "volumes", "spec"),
        )
        if not pod.containers:
            raise MalformedObjectError("spec.containers is empty")
        return pod

    @property
    def all_containers(self) -> list[Container]:
        """Init containers first, as KAI looks for names."""
        return [*self.init_containers, *self.containers]


def _containers(spec: Object, group: str) -> list[Container]:
    return [Container.read(group, index, raw) for index, raw in enumerate(objects(spec, group, "spec"))]
