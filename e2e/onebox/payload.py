"""Files made of ConfigMaps and of the pod's own fields, written so that readers see the old or the new ones whole."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Payload = dict[str, tuple[str, int]]  # path in the volume -> content, mode


def collect(
    sources: Sequence[Mapping[str, Any]],
    pod: Mapping[str, Any],
    config_maps: Mapping[str, Mapping[str, str]],
    default_mode: int,
) -> Payload:
    """All files of a projected (or single-source) volume; KeyError with kubelet's words for what is missing."""
    payload: Payload = {}
    for source in sources:
        for kind, what in source.items():
            if kind == "configMap":
                payload |= _from_config_map(what, config_maps, default_mode)
            elif kind == "downwardAPI":
                for item in what.get("items", []):
                    value = read_field(pod, item["fieldRef"]["fieldPath"])
                    payload[item["path"]] = (value, item.get("mode", default_mode))
            elif kind == "serviceAccountToken":
                payload[what["path"]] = ("no token: this machine has no API server\n", 0o600)
            else:
                raise KeyError(f"a source {kind} is not one that this runner has")
    return payload


def _from_config_map(
    source: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]], default_mode: int
) -> Payload:
    name, optional = source["name"], source.get("optional", False)
    data = config_maps.get(name)
    if data is None:
        if optional:
            return {}
        raise KeyError(f'configmap "{name}" not found')
    if not source.get("items"):
        return {key: (value, default_mode) for key, value in data.items()}
    payload: Payload = {}
    for item in source["items"]:
        if item["key"] in data:
            payload[item["path"]] = (data[item["key"]], item.get("mode", default_mode))
        elif not optional:
            raise KeyError(f"configmap references non-existent config key: {item['key']}")
    return payload


def read_field(pod: Mapping[str, Any], path: str) -> str:
    """A field of the pod by the downward API; an annotation or label that isn't there is empty."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    for kind in ("annotations", "labels"):
        prefix = f"metadata.{kind}['"
        if path.startswith(prefix) and path.endswith("']"):
            return str((metadata.get(kind) or {}).get(path[len(prefix) : -2], ""))
        if path == f"metadata.{kind}":
            return "".join(f'{key}="{value}"\n' for key, value in sorted((metadata.get(kind) or {}).items()))
    plain = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": status.get("podIP"),
        "status.hostIP": status.get("hostIP"),
    }
    if path not in plain:
        raise KeyError(f"unsupported fieldPath: {path}")
    return str(plain[path] or "")


def write_payload(directory: Path, payload: Payload) -> None:
    """Write the files as kubelet does: real ones in a new dated directory, `..data` a link to it that is renamed over,
    and for each file a link through `..data`."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "..data"
    old = data.readlink() if data.is_symlink() else None
    if old is not None and _read(directory / old) == {path: content for path, (content, _) in payload.items()}:
        return
    dated = directory / time.strftime(f"..%Y_%m_%d_%H_%M_%S.{time.monotonic_ns() % 10**10:010d}")
    dated.mkdir()
    dated.chmod(0o755)
    for path, (content, mode) in payload.items():
        file = dated / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(mode)
    (directory / "..data_tmp").symlink_to(dated.name)
    (directory / "..data_tmp").rename(data)
    tops = {Path(path).parts[0] for path in payload}
    for present in directory.iterdir():
        if not present.name.startswith("..") and present.name not in tops:
            present.unlink()
    for top in tops:
        if not (directory / top).is_symlink():
            (directory / top).symlink_to(f"..data/{top}")
    if old is not None:
        shutil.rmtree(directory / old)


def _read(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in files}
