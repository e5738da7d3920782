"""What in a pod stands in the way of the injection: foreign objects under our names or at our paths."""

import posixpath
from functools import lru_cache

from webhook import injection, names, reasons
from webhook.injection import OUR_PATHS, OUR_VOLUMES, Injection
from webhook.pod import Container, Object, Pod, text
from webhook.share import Denied, Share, shown

# Volumes that the kubelet mounts read-only whatever the mount says.
_READ_ONLY_KINDS = ("configMap", "secret", "downwardAPI", "projected", "image")


def check(pod: Pod, share: Share, wanted: Injection) -> None:
    """Raise Denied if something of the pod's own has our names or lies at our paths."""
    for name, volume in wanted.volumes.items():
        found = pod.volumes.get(name)
        if found is not None:
            _check_volume(pod, share, wanted, found, volume)
    for container in pod.all_containers:
        is_target = container is share.target
        for mount in container.mounts:
            ours = wanted.mounts.get(text(mount, "name", container.where)) if is_target else None
            if ours is None or not injection.same(mount, ours):
                _check_mount(pod, container, mount, is_target)
        if is_target:
            for device in container.devices:
                _check_path(container, text(device, "devicePath", container.where), "block device")


def _check_volume(pod: Pod, share: Share, wanted: Injection, actual: Object, ours: Object) -> None:
    if injection.same(actual, ours):
        return
    name = ours["name"]
    if name == names.QUOTA_VOLUME:
        sources = quota_sources(actual)
        if wanted.limit_source is not None and sources == 1 and injection.same(actual, without_limit(ours)):
            return  # the first call's volume: KAI has named its ConfigMap since
        if sources > 1:
            trusted = share.trusted_config_map(pod)
            expected = f"only {trusted} would be KAI's" if trusted else "KAI hasn't named its ConfigMap yet"
            raise Denied(
                reasons.QUOTA_SOURCE_FOREIGN,
                f"volume {name} of the pod takes the limit from a source that isn't KAI's for container "
                f"{shown(share.target.name)} ({expected}): remove all volumes and mounts named vgpu-* from the "
                "manifest (a copy of a running pod has them) and the annotation runai/shared-gpu-configmap",
            )
    raise Denied(
        reasons.VOLUME_TAKEN,
        f"the pod has a volume of its own named {name}, the name of a volume that enforces the share: rename it (in a "
        "manifest copied from another cluster's pod, remove all volumes and mounts named vgpu-*)",
    )


def quota_sources(volume: Object) -> int:
    """Return how many sources a projected volume has."""
    projected = volume.get("projected")
    sources = projected.get("sources") if isinstance(projected, dict) else None
    return len(sources) if isinstance(sources, list) else 0


def without_limit(quota_volume: Object) -> Object:
    """Return the quota volume as the first call makes it, before KAI named its ConfigMap."""
    projected = quota_volume["projected"]
    return {**quota_volume, "projected": {**projected, "sources": projected["sources"][:1]}}


def _check_mount(pod: Pod, container: Container, mount: Object, is_target: bool) -> None:
    name = text(mount, "name", container.where)
    raw_path = text(mount, "mountPath", container.where)
    if name in OUR_VOLUMES:
        raise Denied(
            reasons.MOUNT_TAKEN,
            f"container {shown(container.name)} mounts volume {name} at {shown(raw_path)}, and that volume belongs to "
            "the enforcement of the share: remove this mount, it is added where it is needed",
        )
    if not is_target:
        return
    _check_path(container, raw_path, f"volume {shown(name)}")
    over = covered(mount)
    if over is not None and _reads_only(mount, pod.volumes.get(name)):
        raise Denied(
            reasons.PARENT_READ_ONLY,
            f"container {shown(container.name)} mounts volume {shown(name)} read-only at {shown(raw_path)}, which "
            f"covers {over}, where the enforcement of the share is mounted, so the container could not start: "
            "mount the volume deeper, or single files of it by subPath",
        )


def _check_path(container: Container, raw_path: str, what: str) -> None:
    path = clean(raw_path)
    taken = next((ours for ours in OUR_PATHS if path == ours or _is_below(path, ours)), None)
    if taken is not None:
        raise Denied(
            reasons.MOUNT_TAKEN,
            f"container {shown(container.name)} has {what} at {shown(raw_path)}, and {taken} is where the enforcement "
            "of the share is mounted: mount it at another path",
        )


def covered(mount: Object) -> str | None:
    """Return the first of our paths that lies below where a volume is mounted."""
    parent = clean(text(mount, "mountPath", "volumeMounts"))
    return next((ours for ours in OUR_PATHS if _is_below(ours, parent)), None)


@lru_cache(maxsize=1024)
def clean(path: str) -> str:
    """Return the path as the container runtime takes it: absolute, without dots, /var/run as /run."""
    # One leading slash only: normpath keeps two, which mean nothing here.
    cleaned = posixpath.normpath("/" + path.lstrip("/"))
    if cleaned == "/var/run" or cleaned.startswith("/var/run/"):
        return cleaned.removeprefix("/var")
    return cleaned


def _is_below(path: str, parent: str) -> bool:
    return path != parent and path.startswith(parent.rstrip("/") + "/")


def _reads_only(mount: Object, volume: Object | None) -> bool:
    if mount.get("readOnly") is True:
        return True
    if volume is None:
        return False
    return any(
        kind in _READ_ONLY_KINDS or (isinstance(body, dict) and body.get("readOnly") is True)
        for kind, body in volume.items()
    )
