"""The JSON Patch (RFC 6902) that completes a pod: `add` operations only, built directly, nothing replaced or moved.

The pod must have passed `conflicts.check`: what is there under our names is ours.
"""

from dataclasses import dataclass, field

from webhook import names
from webhook.conflicts import quota_sources
from webhook.injection import OUR_VOLUMES, Injection
from webhook.pod import Container, Object, Pod
from webhook.share import Share

Operation = dict[str, object]


@dataclass(slots=True)
class Patch:
    """Operations in their order. `found` counts what was there already, to tell a first call from a completing one."""

    operations: list[Operation] = field(default_factory=list)
    found: int = 0

    def add(self, path: str, value: object) -> None:
        """Append one operation."""
        self.operations.append({"op": "add", "path": path, "value": value})

    def extend_list(self, parent: Object, pointer: str, key: str, entries: list[Object]) -> None:
        """Append entries to a list that may be absent, null or empty."""
        if not entries:
            return
        if parent.get(key) is None:
            self.add(f"{pointer}/{key}", entries)
        else:
            for entry in entries:
                self.add(f"{pointer}/{key}/-", entry)


def build(pod: Pod, share: Share, wanted: Injection) -> Patch:
    """Return what the pod lacks of the injection."""
    patch = Patch()
    target = share.target
    mount_names = {mount.get("name") for mount in target.mounts}
    parts = [
        (pod.spec, "/spec", "volumes", wanted.volumes, pod.volumes),
        (target.raw, target.path, "volumeMounts", wanted.mounts, mount_names),
        (target.raw, target.path, "env", wanted.env, target.env),
    ]
    for parent, pointer, key, objects, present in parts:
        missing = [entry for name, entry in objects.items() if name not in present]
        patch.found += len(objects) - len(missing) if key != "env" else 0
        patch.extend_list(parent, pointer, key, missing)
    _complete_quota(patch, pod, wanted)
    _keep_evictable(patch, pod)
    return patch


def _complete_quota(patch: Patch, pod: Pod, wanted: Injection) -> None:
    found = pod.volumes.get(names.QUOTA_VOLUME)
    if found is not None and wanted.limit_source is not None and quota_sources(found) == 1:
        place = pod.spec["volumes"].index(found)
        patch.add(f"/spec/volumes/{place}/projected/sources/-", wanted.limit_source)


def _keep_evictable(patch: Patch, pod: Pod) -> None:
    """Name our volumes to the cluster autoscaler: they hold nothing that would have to survive a node."""
    value = pod.annotations.get(names.SAFE_TO_EVICT, "")
    listed = [name.strip() for name in value.split(",")]
    missing = [name for name in OUR_VOLUMES if name not in listed]
    if missing:
        pointer = "/metadata/annotations/" + names.SAFE_TO_EVICT.replace("~", "~0").replace("/", "~1")
        # The key is there or not: for a member of an object, add does both.
        patch.add(pointer, ",".join([value, *missing] if value.strip() else missing))


def hide_gpu(patch: Patch, containers: list[Container]) -> None:
    """Give each container that says nothing about devices an NVIDIA_VISIBLE_DEVICES that shows none."""
    for container in containers:
        if names.VISIBLE_DEVICES_ENV not in container.env:
            entry: Object = {"name": names.VISIBLE_DEVICES_ENV, "value": "void"}
            patch.extend_list(container.raw, container.path, "env", [entry])


def default_seccomp(patch: Patch, container: Container) -> None:
    """Give the container the runtime's seccomp profile; neither it nor the pod may have one yet."""
    profile: Object = {"type": "RuntimeDefault"}
    if container.raw.get("securityContext") is None:
        patch.add(f"{container.path}/securityContext", {"seccompProfile": profile})
    else:
        patch.add(f"{container.path}/securityContext/seccompProfile", profile)
