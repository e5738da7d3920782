"""Carries out a Dockerfile's stages: each step's changes become a layer, cached by all that went into it.

A step runs in a mount namespace of its own, over an overlay of the layers below it: what it mounts goes with it.
Needs root.
"""

import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.images.dockerfile import Copy, Run, Stage, parse

# A clean machine's name lookup, certificates and package settings, for steps that use a registry.
_SHARED_FILES = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
_SHARED_VARIABLES = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_UNUSED_SECONDS = 14 * 24 * 3600


@dataclass(frozen=True)
class Image:
    """Layers from the bottom up (folders), how many of them are the base's, and how it is started."""

    layers: tuple[Path, ...]
    base_layers: int
    stage: Stage

    @property
    def own_bytes(self) -> int:
        """Unpacked size of what lies above the base."""
        done = subprocess.run(
            ["du", "--summarize", "--total", "--bytes", *map(str, self.layers[self.base_layers :])],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(done.stdout.splitlines()[-1].split()[0])


class Builder:
    """Builds images from one context, with a folder of layers that outlives it."""

    def __init__(self, context: Path, cache: Path, bases: Mapping[str, Path]) -> None:
        """`bases`: root folders that stand for images of a registry."""
        self._context = context
        self._cache = cache
        self._bases = bases
        cache.mkdir(parents=True, exist_ok=True)

    def build(self, dockerfile: str, contexts: Mapping[str, Path] | None = None) -> Image:
        """The image of the last stage. `contexts` takes folders in place of stages, as --build-context does."""
        contexts = contexts or {}
        stages = parse(self._context / dockerfile)
        last = stages[-1]
        by_name = {stage.name: stage for stage in stages if stage.name}
        base = self._bases.get(last.base)
        layers = self._layers(last, by_name, contexts)
        return Image(tuple(layers), 0 if base is None else 1, last)

    def add(self, image: Image, files: Mapping[str, bytes]) -> Image:
        """The image with one more layer, in which files are replaced."""
        key = hashlib.sha256(f"{image.layers}{sorted(files.items())}".encode()).hexdigest()
        layer = self._cache / key[:32] / "layer"
        if not layer.exists():
            partial = layer.with_name("partial")
            for name, content in files.items():
                path = partial / name.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            partial.rename(layer)
        os.utime(layer.parent)
        return Image((*image.layers, layer), image.base_layers, image.stage)

    def remove_unused(self) -> None:
        """Drop layers that no build has used for two weeks."""
        for key in self._cache.iterdir():
            if time.time() - key.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(key)

    def _layers(self, stage: Stage, stages: Mapping[str, Stage], contexts: Mapping[str, Path]) -> list[Path]:
        """Root folders of a stage from the bottom up; what isn't cached is made."""
        if stage.base in stages:
            layers = self._layers(stages[stage.base], stages, contexts)
        elif stage.base in self._bases:
            layers = [self._bases[stage.base]]
        elif stage.base == "scratch":
            layers = []
        else:
            raise LookupError(f"no root folder stands for image {stage.base}")
        key = hashlib.sha256(str(layers).encode()).hexdigest()
        for number, step in enumerate(stage.steps):
            origin: Path | list[Path] = self._context
            ingredients: list[object] = [step]
            if isinstance(step, Copy):
                origin = self._origin(step, stages, contexts)
                ingredients += map(str, origin) if isinstance(origin, list) else _fingerprint(origin, step.sources)
            where = [stage.directory(number), stage.variables(number)]
            key = hashlib.sha256(f"{key}{ingredients}{where}".encode()).hexdigest()
            layer = self._cache / key[:32] / "layer"
            if not layer.exists():
                _make(layer, layers, stage, number, origin)
            os.utime(layer.parent)
            layers = [*layers, layer]
        return layers

    def _origin(self, step: Copy, stages: Mapping[str, Stage], contexts: Mapping[str, Path]) -> Path | list[Path]:
        """Where a COPY takes its files: a folder, or a stage's layers."""
        if step.stage in contexts:
            return contexts[step.stage]
        return self._layers(stages[step.stage], stages, contexts) if step.stage else self._context


def _make(layer: Path, layers: list[Path], stage: Stage, number: int, origin: Path | list[Path]) -> None:
    """Run one step; its layer appears under its name only when it is complete."""
    step = stage.steps[number]
    work = layer.with_name("partial")
    shutil.rmtree(work, ignore_errors=True)
    for name in ("upper", "work", "root", "from", "empty"):
        (work / name).mkdir(parents=True)
    script = ["set -e", _overlay(work, layers, "root", writable=True)]
    if isinstance(step, Run):
        script += _share(work / "root")
        script.append(f"exec chroot {work}/root /bin/sh -c {shlex.quote(_inside(stage, number, step))}")
    else:
        folder = origin if isinstance(origin, Path) else work / "from"
        if isinstance(origin, list):
            script.append(_overlay(work, origin, "from", writable=False))
        script += _copy(step, folder, work / "root", stage.directory(number))
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(_SHARED_VARIABLES)}
    environment |= stage.variables(number)
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(script)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{step}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (work / "upper").rename(layer)
    shutil.rmtree(work)


def write_archive(images: Mapping[str, Image], archive: Path) -> None:
    """Images by name in one archive, as `ctr images import` and `docker load` take it; each layer is in it once.

    Written only if it is another one.
    """
    files: dict[str, Path | bytes] = {}
    manifest = []
    for name, image in images.items():
        layers = [_layer_archive(layer) for layer in image.layers]
        digests = [layer.with_suffix(".sha256").read_text() for layer in layers]
        config = _config(image, digests)
        file = hashlib.sha256(config).hexdigest() + ".json"
        files |= {file: config} | {f"{digest}.tar": layer for digest, layer in zip(digests, layers, strict=True)}
        manifest.append({"Config": file, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]})
    written = archive.with_suffix(".json")
    if archive.exists() and written.exists() and json.loads(written.read_text()) == manifest:
        return
    written.unlink(missing_ok=True)
    with tarfile.open(archive, "w") as tar:
        for name, content in (*files.items(), ("manifest.json", json.dumps(manifest).encode())):
            if isinstance(content, Path):
                tar.add(content, name)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    written.write_text(json.dumps(manifest))


def _config(image: Image, digests: list[str]) -> bytes:
    steps = len(image.stage.steps)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    body = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [path, *(f"{key}={value}" for key, value in image.stage.variables(steps).items())],
            "Entrypoint": image.stage.entrypoint or None,
            "User": image.stage.user,
            "WorkingDir": image.stage.directory(steps),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "make images"} for _ in digests],
    }
    return json.dumps(body, sort_keys=True).encode()


def _layer_archive(layer: Path) -> Path:
    """The layer's tar beside it, with the whiteouts that images use where the overlay has its own; made once."""
    archive = layer.with_suffix(".tar")
    digest = archive.with_suffix(".sha256")
    if digest.exists():
        return archive
    whiteouts = [path for path in layer.rglob("*") if path.is_char_device() and path.lstat().st_rdev == 0]
    marks = layer.with_name("whiteouts")
    marks.mkdir(exist_ok=True)
    for path in whiteouts:
        mark = marks / path.relative_to(layer).with_name(".wh." + path.name)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    command = ["tar", "--create", "--file", str(archive), "--numeric-owner", "--sort=name"]
    command += [f"--exclude=./{path.relative_to(layer)}" for path in whiteouts]
    command += ["--directory", str(layer), "."]
    if whiteouts:
        command += ["--directory", str(marks), "--no-recursion", *_names(marks)]
    subprocess.run(command, check=True)
    with archive.open("rb") as file:
        digest.write_text(hashlib.file_digest(file, "sha256").hexdigest())
    return archive


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _overlay(work: Path, layers: list[Path], mount: str, writable: bool) -> str:
    lower = ":".join(str(layer) for layer in reversed(layers))
    options = f"lowerdir={lower}:{work}/empty"
    if not lower:
        options = f"lowerdir={work}/empty"
    if writable:
        options += f",upperdir={work}/upper,workdir={work}/work"
    return f"mount -t overlay overlay -o {shlex.quote(options)} {work}/{mount}"


def _share(root: Path) -> list[str]:
    """Commands that let a step use the machine's registry settings, none of which end up in the image."""
    script = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    script.append(f"mount -t tmpfs scratch {root}/tmp")  # noqa: S108 (the image's, not ours)
    for file in _SHARED_FILES:
        if Path(file).exists():
            script.append(f"[ -e {root}{file} ] && mount --bind $(readlink -f {file}) {root}{file} || true")
    return script


def _inside(stage: Stage, number: int, step: Run) -> str:
    return f"mkdir -p {stage.directory(number)} && cd {stage.directory(number)} && {step.command}"


def _copy(step: Copy, origin: Path, root: Path, directory: str) -> list[str]:
    """A folder's content goes into the target; a file becomes the target, or lies in it with a slash behind it."""
    target = root / os.path.normpath(f"{directory}/{step.target}").lstrip("/")
    script = []
    for source in step.sources:
        path = shlex.quote(str(origin / source.lstrip("/")))
        file = target / Path(source).name if step.target.endswith("/") else target
        own = "--exclude=__pycache__" if not step.stage else ""
        into = f"mkdir -p {target} && tar -C {path} {own} -c . | tar -C {target} --no-same-owner -x"
        script.append(f"if [ -d {path} ]; then {into}; else mkdir -p {file.parent}; cp -p {path} {file}; fi")
    return script


def _fingerprint(context: Path, sources: tuple[str, ...]) -> Iterator[str]:
    """Names, modes and contents of the files, without what Python leaves behind."""
    for source in sources:
        top = context / source.lstrip("/")
        files = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
        for path in files:
            if "__pycache__" not in path.parts:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                yield f"{path.relative_to(context)} {path.stat().st_mode & 0o777:o} {digest}"
