"""Installs into <base>/abi-<n> and repairs there. The content's hash decides what has to be written.

The manifest goes first: it says that the directory is ours, whatever happens after it. The preload file goes last:
a pod mounts it with `type: File`, so no pod starts before the library that it names is in place.
"""

import json
from collections.abc import Callable
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

    `ours`: the directory is known to be ours even if its manifest is gone. RefusalError leaves what pods use as it was.
    """
    base, directory = settings.target, release.directory(settings.target)
    prepare = _labeller(settings.selinux_type)
    node.make_directory(base, parents=True)
    node.check_place(base)
    with node.hold_lock(base):
        node.make_directory(directory)
        node.check_place(directory)
        node.check_neighbours(base, directory)
        files.remove_leftovers(directory)
        if prepare is not None:
            prepare(directory)
        wanted = {
            names.MANIFEST_FILE: release.manifest,
            names.LIBRARY_FILE: release.content,
            names.PRELOAD_FILE: names.PRELOAD_TEXT.encode(),
        }
        found = {name: files.read_regular(directory / name) for name in wanted}
        if not ours:
            _check_ownership(directory, found, release)
        stale = [name for name, content in wanted.items() if found[name] != content or _mode_differs(directory / name)]
        for name in stale:
            files.write_atomically(directory / name, wanted[name], prepare)
        if not node.is_readable_by_all(directory):
            directory.chmod(files.DIRECTORY_MODE)
            stale.append("the directory's mode")
        if stale:
            _prove(directory / names.LIBRARY_FILE, release)
    return stale


def differences(release: Release, base: Path) -> list[str]:
    """What isn't as the release wants it, as sentences; changes nothing."""
    directory = release.directory(base)
    wanted = {
        names.LIBRARY_FILE: release.content,
        names.PRELOAD_FILE: names.PRELOAD_TEXT.encode(),
        names.MANIFEST_FILE: release.manifest,
    }
    found = []
    for name, content in wanted.items():
        present = files.read_regular(directory / name)
        if present is None:
            found.append(f"{directory / name} is missing")
        elif present != content:
            found.append(f"{directory / name} differs from release {release.identity.version}")
        elif _mode_differs(directory / name):
            found.append(f"{directory / name} has another mode than {files.FILE_MODE:o}")
    if not found and not node.is_readable_by_all(directory):
        found.append(f"{directory} can't be read by every container")
    return found


def _check_ownership(directory: Path, found: dict[str, bytes | None], release: Release) -> None:
    """RefusalError if a library lies under our name that no manifest of ours speaks for."""
    library = found[names.LIBRARY_FILE]
    if library is None or library == release.content:
        return
    try:
        manifest = json.loads(found[names.MANIFEST_FILE] or b"")
        known = isinstance(manifest, dict) and {"version", "abi", "sha256", "arch"} <= manifest.keys()
    except ValueError:
        known = False
    if not known:
        raise RefusalError(
            f"{directory / names.LIBRARY_FILE} isn't ours (no manifest speaks for it): "
            "remove it or choose another --target"
        )


def _prove(library: Path, release: Release) -> None:
    """The self-test once more, on the file where pods get it: a mount's or a label's refusal shows only there."""
    if ask_identity(library) != release.identity:
        raise RefusalError(f"self-test: {library} isn't the library that was installed")


def _mode_differs(path: Path) -> bool:
    return path.stat().st_mode & 0o7777 != files.FILE_MODE if path.exists() else True


def _labeller(selinux_type: str) -> Callable[[Path], None] | None:
    return partial(selinux.label, selinux_type=selinux_type) if selinux.is_enabled() else None
