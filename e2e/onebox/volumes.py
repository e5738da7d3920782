"""A pod's volumes as kubelet prepares them: the same places below its root, the same checks, the same sentences.

Kinds: hostPath, emptyDir (also Memory), projected, configMap, downwardAPI. Others are refused.
"""

import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from e2e.onebox.payload import Payload, collect, write_payload

_HOST_PATH_CHECKS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}
_SUFFIXES = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}


class FailedMountError(Exception):
    """The pod stays in ContainerCreating with event FailedMount; kubelet would try again."""


class Mounter(Protocol):
    """Who mounts in the node's namespace."""

    def ask(self, do: str, path: Path, **fields: str) -> None:
        """Do `tmpfs`, `unmount` or `directory` at a path."""


@dataclass
class Volumes:
    """The volumes of one pod. `sources` says where each lies on the node once prepare() has succeeded."""

    pod: Mapping[str, Any]
    directory: Path  # <kubelet root>/pods/<uid>/volumes
    mounter: Mounter
    config_maps: Mapping[str, Mapping[str, str]]  # of the pod's namespace, by name
    sources: dict[str, Path] = field(default_factory=dict)

    def prepare(self) -> None:
        """Prepare what isn't yet; FailedMountError with kubelet's words for the first that can't be."""
        for volume in self.pod["spec"].get("volumes", []):
            name = volume["name"]
            kinds = [key for key in volume if key != "name"] or ["emptyDir"]
            try:
                self.sources[name] = self._prepare_one(name, kinds[0], volume.get(kinds[0]) or {})
            except OSError as error:
                raise FailedMountError(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error

    def refresh(self) -> None:
        """What kubelet's sync does: annotations and ConfigMaps that changed show in the files."""
        for volume in self.pod["spec"].get("volumes", []):
            if self._is_payload(volume):
                self._prepare_one(volume["name"], next(key for key in volume if key != "name"), _only(volume))

    def sub_path(self, name: str, path: str) -> Path:
        """A mount's source below a volume, made where it is absent, open to any uid as the volume is."""
        if ".." in Path(path).parts or Path(path).is_absolute():
            raise FailedMountError(f"subPath {path!r} leaves its volume")
        source = self.sources[name]
        for part in Path(path).parts:
            source /= part
            self.mounter.ask("directory", source, mode="1777")
        return source

    def remove(self) -> None:
        """Give back the memory and the directories."""
        for volume in self.pod["spec"].get("volumes", []):
            if (volume.get("emptyDir") or {}).get("medium") == "Memory" and volume["name"] in self.sources:
                self.mounter.ask("unmount", self.sources[volume["name"]])
        shutil.rmtree(self.directory, ignore_errors=True)

    def _prepare_one(self, name: str, kind: str, source: Mapping[str, Any]) -> Path:
        if kind == "hostPath":
            return check_host_path(Path(source["path"]), source.get("type", ""))
        if kind == "emptyDir":
            path = self.directory / "kubernetes.io~empty-dir" / name
            if path.exists():
                return path  # it survives restarts of containers with its content
            if source.get("medium") == "Memory":
                size = str(quantity_bytes(source.get("sizeLimit", "64Mi")))
                self.mounter.ask("tmpfs", path, size=size, mode="1777")
            else:
                path.mkdir(parents=True)
                path.chmod(0o1777)
            return path
        payload = self._payload(name, kind, source)
        path = (
            self.directory
            / {"projected": "kubernetes.io~projected", "configMap": "kubernetes.io~configmap"}.get(
                kind, "kubernetes.io~downward-api"
            )
            / name
        )
        write_payload(path, payload)
        return path

    def _payload(self, name: str, kind: str, source: Mapping[str, Any]) -> Payload:
        if kind not in ("projected", "configMap", "downwardAPI"):
            raise FailedMountError(f'volume "{name}": {kind} is not a kind of volume that this runner has')
        sources = source.get("sources", []) if kind == "projected" else [{kind: source}]
        try:
            return collect(sources, self.pod, self.config_maps, source.get("defaultMode", 0o644))
        except KeyError as error:
            raise FailedMountError(f'MountVolume.SetUp failed for volume "{name}" : {error.args[0]}') from error

    @staticmethod
    def _is_payload(volume: Mapping[str, Any]) -> bool:
        return any(kind in volume for kind in ("projected", "configMap", "downwardAPI"))


def _only(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    source: Mapping[str, Any] = next(value for key, value in volume.items() if key != "name")
    return source


def check_host_path(path: Path, kind: str) -> Path:
    """kubelet's check of a hostPath volume's type; DirectoryOrCreate, FileOrCreate and no type make what is absent."""
    if kind in ("", "DirectoryOrCreate", "FileOrCreate") and not path.exists():
        if kind == "FileOrCreate":
            path.touch(0o644)
        else:
            path.mkdir(parents=True, mode=0o755)
    if kind in _HOST_PATH_CHECKS:
        fits, what = _HOST_PATH_CHECKS[kind]
        if not path.exists() or not fits(path.stat().st_mode):
            raise FailedMountError(f"hostPath type check failed: {path} is not {what}")
    return path


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity such as 4Mi, in bytes."""
    number = text.rstrip("KMGik")
    return int(number) * _SUFFIXES[text[len(number) :]]
