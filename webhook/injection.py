"""What the webhook puts into a pod with a share: the one authority for volumes, mounts and variables.

An object is "ours" if it says what is built here; the API server's defaults (projected defaultMode, apiVersion of
field references) may have been added since the first call.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from webhook import names
from webhook.pod import Object, Pod
from webhook.share import Share

OUR_VOLUMES = (names.LIBRARY_VOLUME, names.PRELOAD_VOLUME, names.REGION_VOLUME, names.QUOTA_VOLUME)
OUR_PATHS = (names.LIBRARY_DIR, names.PRELOAD_FILE, names.REGION_DIR, names.QUOTA_DIR)

_REGION_SIZE = "4Mi"
# Written out as the API server would default it, so that the second call sees what the first one wrote.
_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Injection:
    """The objects of one pod, by what they are for. `limit_source` is KAI's ConfigMap once it is known."""

    volumes: dict[str, Object]
    mounts: dict[str, Object]
    env: dict[str, Object]
    limit_source: Object | None


def build(pod: Pod, share: Share, library_base: str) -> Injection:
    """Return everything that this pod's target container needs."""
    env: dict[str, Object] = {}
    if share.memory_mib is not None:
        env[names.MEMORY_LIMIT_ENV] = {"name": names.MEMORY_LIMIT_ENV, "value": f"{share.memory_mib}m"}
    env[names.POD_UID_ENV] = {
        "name": names.POD_UID_ENV,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}},
    }
    env[names.CONTAINER_NAME_ENV] = {"name": names.CONTAINER_NAME_ENV, "value": share.target.name}
    source = _limit_source(pod, share)
    library_dir = f"{library_base}/abi-{_abi(pod, library_base)}"
    return Injection(_volumes(library_dir, source), _mounts(share.target.name), env, source)


def _abi(pod: Pod, library_base: str) -> int:
    """Return the abi that a replica of the last or the next release gave this pod in an earlier call, else ours."""
    host_path = pod.volumes.get(names.LIBRARY_VOLUME, {}).get("hostPath")
    path = host_path.get("path") if isinstance(host_path, dict) else None
    neighbours = {f"{library_base}/abi-{abi}": abi for abi in (names.ABI - 1, names.ABI + 1) if abi > 0}
    return neighbours.get(path, names.ABI) if isinstance(path, str) else names.ABI


def _volumes(library_dir: str, limit_source: Object | None) -> dict[str, Object]:
    if limit_source is None:
        return _first_volumes(library_dir)
    quota = {"defaultMode": _FILE_MODE, "sources": [_annotations_source(), limit_source]}
    return {**_first_volumes(library_dir), names.QUOTA_VOLUME: {"name": names.QUOTA_VOLUME, "projected": quota}}


# Built once: what is built here is only compared and written out, never changed.
@lru_cache
def _first_volumes(library_dir: str) -> dict[str, Object]:
    kinds: dict[str, tuple[str, Object]] = {
        # A type makes the pod wait on a node without the library; with none an empty directory would be made there
        # and the pod would run uncapped.
        names.LIBRARY_VOLUME: ("hostPath", {"path": library_dir, "type": "Directory"}),
        names.PRELOAD_VOLUME: ("hostPath", {"path": f"{library_dir}/ld.so.preload", "type": "File"}),
        names.REGION_VOLUME: ("emptyDir", {"medium": "Memory", "sizeLimit": _REGION_SIZE}),
        names.QUOTA_VOLUME: ("projected", {"defaultMode": _FILE_MODE, "sources": [_annotations_source()]}),
    }
    return {name: {"name": name, kind: body} for name, (kind, body) in kinds.items()}


@lru_cache
def _annotations_source() -> Object:
    files = {names.GPU_MEMORY: names.QUOTA_MEMORY_FILE, names.GPU_FRACTION: names.QUOTA_FRACTION_FILE}
    return {
        "downwardAPI": {
            "items": [
                {
                    "path": path,
                    "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"},
                }
                for annotation, path in files.items()
            ]
        }
    }


@lru_cache(maxsize=1024)
def _mounts(container: str) -> dict[str, Object]:
    mounts: list[Object] = [
        {"name": names.LIBRARY_VOLUME, "mountPath": names.LIBRARY_DIR, "readOnly": True},
        {"name": names.PRELOAD_VOLUME, "mountPath": names.PRELOAD_FILE, "readOnly": True},
        {"name": names.REGION_VOLUME, "mountPath": names.REGION_DIR, "subPath": container},
        # No subPath: a file mounted by subPath never sees the ConfigMap that comes later.
        {"name": names.QUOTA_VOLUME, "mountPath": names.QUOTA_DIR, "readOnly": True},
    ]
    return {mount["name"]: mount for mount in mounts}


def _limit_source(pod: Pod, share: Share) -> Object | None:
    name = share.trusted_config_map(pod)
    if name is None or name not in referenced_config_maps(share):
        return None
    item = {"key": names.MEMORY_LIMIT_ENV, "path": names.QUOTA_LIMIT_FILE}
    return {"configMap": {"name": name, "items": [item], "optional": True}}


def referenced_config_maps(share: Share) -> set[str]:
    """Return the ConfigMaps that the target's KAI variables come from."""
    entries = [share.target.env[name] for name in names.KAI_ENVS if name in share.target.env]
    return {reference for entry in entries if (reference := config_map_key(entry)) is not None}


def config_map_key(entry: Object) -> str | None:
    """Return the name of the ConfigMap that a variable's value comes from."""
    source = entry.get("valueFrom")
    reference = source.get("configMapKeyRef") if isinstance(source, dict) else None
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else None


def same(actual: Any, wanted: Any) -> bool:
    """Return whether `actual` says the same as `wanted`, apart from defaults that the API server leaves out or adds."""
    if actual == wanted and type(actual) is type(wanted):
        return True
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return False
        keys = {key for key, value in actual.items() if value is not None and value is not False}
        optional = {"defaultMode", "apiVersion"}
        return (keys | optional) == (wanted.keys() | optional) and all(
            same(actual.get(key, value if key in optional else None), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(same(one, other) for one, other in zip(actual, wanted, strict=True))
        )
    return False
