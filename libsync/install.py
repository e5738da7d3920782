"""Installs into <base>/abi-<n> and repairs there. The content decides what has to be written.

The manifest goes first: it says that the directory is ours, whatever happens after it. The preload file goes last:
a pod mounts it with `type: File`, so no pod starts before the library that it names is in place.
"""

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from libsync import elf, files, names, node, selinux
from libsync.config import Settings
from libsync.errors import RefusalError
from libsync.selftest import Identity, ask_identity


@dataclass(frozen=True)
class Release:
    """The library that this libsync brings, proven by its self-test."""

    content: bytes
    sha256: str
    identity: Identity
    architecture: str

    @property
    def manifest(self) -> bytes:
        """What the directory is to hold, for people and tools on the node."""
        fields = {
            "version": self.identity.version,
            "abi": self.identity.abi,
            "sha256": self.sha256,
            "arch": self.architecture,
        }
        return (json.dumps(fields, indent=1) + "\n").encode()

    @property
    def files(self) -> dict[str, bytes]:
        """What belongs into its directory, in the order in which it is written."""
        return {
            names.MANIFEST_FILE: self.manifest,
            names.LIBRARY_FILE: self.content,
            names.PRELOAD_FILE: names.PRELOAD_TEXT.encode(),
        }

    def directory(self, base: Path) -> Path:
        """Where it goes: libraries of one abi share a directory, so that two ledgers never serve one container."""
        return base / f"{names.ABI_DIRECTORY_PREFIX}{self.identity.abi}"


def load_release(library: Path) -> Release:
    """The library for this node's machine, from a file or an image's directory; RefusalError if it isn't usable."""
    machine = node.architecture()
    if library.is_dir():
        own = library / machine / names.LIBRARY_FILE
        library = own if own.exists() else library / names.LIBRARY_FILE
    built_for = elf.read_architecture(library)
    if built_for != machine:
        raise RefusalError(
            f"{library} is for {built_for}, this node is {machine}: set --library to the one for {machine}"
        )
    content = files.read_regular(library.resolve())
    if content is None:
        raise RefusalError(f"{library} has disappeared; set --library")
    return Release(content, files.digest(content), ask_identity(library), machine)


def install(release: Release, settings: Settings, ours: bool = False) -> list[str]:
    """Bring the node to the release; what had to be written or changed (nothing: all was well).

    `ours`: this process has seen the directory in order before, so it is ours even if its manifest is gone.
    RefusalError leaves what pods use as it was.
    """
    base, directory = settings.target, release.directory(settings.target)
    selinux_type = settings.selinux_type if selinux.is_enabled() else ""
    node.make_directory(base, parents=True)
    node.check_place(base)
    with node.hold_lock(base):
        node.check_neighbours(base, directory)
        node.make_directory(directory)
        node.check_place(directory)
        files.remove_leftovers(directory)
        if selinux_type:
            selinux.label(directory, selinux_type)
        if not ours:
            _check_ownership(directory, release)
        stale = [name for name, content in release.files.items() if _fault(directory / name, content, selinux_type)]
        for name in stale:
            proof = release if name == names.LIBRARY_FILE else None
            prepare = partial(_prepare, selinux_type=selinux_type, proof=proof)
            files.write_atomically(directory / name, release.files[name], prepare)
        if not ours and names.LIBRARY_FILE not in stale:
            _prove(directory / names.LIBRARY_FILE, release)
        if not node.is_readable_by_all(directory):
            directory.chmod(files.DIRECTORY_MODE)
            stale.append("the directory's mode")
    return stale


def differences(release: Release, settings: Settings) -> list[str]:
    """What isn't as the release wants it, as sentences; changes nothing. RefusalError for an unusable place."""
    base, directory = settings.target, release.directory(settings.target)
    selinux_type = settings.selinux_type if selinux.is_enabled() else ""
    for place in (base, directory):
        node.refuse_link(place)
        if not place.is_dir():
            return [f"{place} is missing"]
        node.check_place(place)
    node.check_neighbours(base, directory)
    faults = (
        (directory / name, _fault(directory / name, content, selinux_type)) for name, content in release.files.items()
    )
    found = [f"{path} {fault}" for path, fault in faults if fault]
    if not node.is_readable_by_all(directory):
        found.append(f"{directory} can't be read by every container")
    if not found:
        _prove(directory / names.LIBRARY_FILE, release)
    return found


def _fault(path: Path, content: bytes, selinux_type: str) -> str:
    """What is wrong with a file of ours, "" if nothing is."""
    present = files.read_regular(path)
    if present is None:
        return "is missing"
    if present != content:
        return "differs from this release's"
    status = path.stat()
    if status.st_mode & 0o7777 != files.FILE_MODE:
        return f"has another mode than {files.FILE_MODE:o}"
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {status.st_uid}, who could change it"
    if selinux_type and selinux.read_type(path) != selinux_type:
        return f"has another SELinux type than {selinux_type}"
    return ""


def _check_ownership(directory: Path, release: Release) -> None:
    """RefusalError if a library lies under our name that no manifest of ours speaks for."""
    library = files.read_regular(directory / names.LIBRARY_FILE)
    if library is None or library == release.content:
        return
    try:
        manifest = json.loads(files.read_regular(directory / names.MANIFEST_FILE) or b"")
        known = isinstance(manifest, dict) and {"version", "abi", "sha256", "arch"} <= manifest.keys()
    except ValueError:
        known = False
    if not known:
        raise RefusalError(
            f"{directory / names.LIBRARY_FILE} isn't ours (no manifest speaks for it): "
            "remove it or choose another --target"
        )


def _prepare(temporary: Path, selinux_type: str, proof: Release | None) -> None:
    """What is done to a file before it gets its name, so that pods never meet one that they can't use."""
    if selinux_type:
        selinux.label(temporary, selinux_type)
    if proof is not None:
        _prove(temporary, proof)


def _prove(library: Path, release: Release) -> None:
    """The self-test once more, on the node's own file system: a mount's or a label's refusal shows only there."""
    if ask_identity(library) != release.identity:
        raise RefusalError(f"self-test: {library} isn't the library that was installed")
