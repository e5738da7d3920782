"""The project's images, and those that the cluster's tests use, as one archive."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.node import PAUSE_IMAGE
from e2e.cluster.settings import Settings
from e2e.images.build import Builder, Image, write_archive
from e2e.images.dockerfile import Stage

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / "images.tar"
REGISTRY = "registry.test"  # no such host: what isn't on the node can't be pulled from anywhere
TAG, NEXT, NEXT_ABI = "e2e", "next", "next-abi"
NEXT_VERSION = "0.1.9"
PROBE_IMAGE = "localhost/kai-resource-isolator/probe:0.1.0"  # as quickstart.yaml names it

# What the Dockerfiles may add to the Python image, unpacked.
LIMITS_BYTES = {"webhook": 120 << 20, "libsync": 60 << 20}
_PYTHON_IMAGE = "python:3.11.13-slim-bookworm"
_CONTEXTS = {"library": ROOT / "build"}
_HOME = "/opt/kai-resource-isolator"
_VERSION = Path("csrc") / "include" / "vgpu" / "version.h"


def build_all(settings: Settings) -> Path:
    """An archive with webhook, libsync, probe, which tenants' pods run, and pause, which every pod's sandbox runs."""
    with settings.alone():
        builder = _builder(settings)
        images = {}
        for name, limit in LIMITS_BYTES.items():
            image = builder.build(f"Dockerfile.{name}", _CONTEXTS)
            if image.own_bytes > limit:
                raise RuntimeError(
                    f"image {name} adds {image.own_bytes >> 20} MiB to Python's, more than {limit >> 20}"
                )
            sys.stdout.write(f"image {name}: {image.own_bytes >> 20} MiB beyond the Python base\n")
            images[_name(name, TAG)] = image
        idle = Stage(base="", name="", user="0:0", entrypoint=["/busybox", "sleep", "2147483647"])
        images[PAUSE_IMAGE] = Image((_provide_busybox(settings),), 0, idle)
        images[PROBE_IMAGE] = builder.build("e2e/images/Dockerfile.probe", _CONTEXTS)
        write_archive(images, ARCHIVE)
        builder.remove_unused()
        return ARCHIVE


def build_next(settings: Settings) -> Path:
    """An archive with the releases after this one: tag NEXT with the same abi, tag NEXT_ABI with the abi after it."""
    with settings.alone():
        builder = _builder(settings)
        webhook, libsync = (builder.build(f"Dockerfile.{name}", _CONTEXTS) for name in ("webhook", "libsync"))
        library = f"{_HOME}/library/x86_64/libvgpu.so"
        abi = int(re.search(r"VGPU_ABI (\d+)", (ROOT / _VERSION).read_text())[1])  # type: ignore[index]
        names = (ROOT / "webhook" / "names.py").read_text().replace(f"ABI = {abi}\n", f"ABI = {abi + 1}\n").encode()
        images = {
            _name("libsync", NEXT): builder.add(libsync, {library: _compile(NEXT_VERSION, abi)}),
            _name("libsync", NEXT_ABI): builder.add(libsync, {library: _compile(NEXT_VERSION, abi + 1)}),
            _name("webhook", NEXT_ABI): builder.add(webhook, {f"{_HOME}/python/webhook/names.py": names}),
        }
        archive = ARCHIVE.with_name("images-next.tar")
        write_archive(images, archive)
        return archive


def _compile(version: str, abi: int) -> bytes:
    """The library as another release: the same sources with another version and abi."""
    sources = sorted(path for path in (ROOT / "csrc").rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / "build" / "next" / f"{version}-{abi}-{digest}"
    library = folder / "build" / "libvgpu.so"
    if not library.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "csrc", folder / "csrc")
        header = folder / _VERSION
        text = re.sub(r'(VGPU_VERSION) ".*"', rf'\1 "{version}"', header.read_text())
        header.write_text(re.sub(r"(VGPU_ABI) \d+", rf"\1 {abi}", text))
        caches = {f"ZIG_{kind}_CACHE_DIR": str(ROOT / "build" / ".zig") for kind in ("GLOBAL", "LOCAL")}
        command = ["make", "--silent", "-C", str(folder / "csrc"), f"PYTHON={sys.executable}", str(library)]
        subprocess.run(command, check=True, env=os.environ | caches, stdout=subprocess.DEVNULL)
    return library.read_bytes()


def _builder(settings: Settings) -> Builder:
    return Builder(ROOT, settings.cache / "layers", {_PYTHON_IMAGE: provide_base(settings)})


def _name(image: str, tag: str) -> str:
    return f"{REGISTRY}/kai-resource-isolator/{image}:{tag}"


def provide_base(settings: Settings) -> Path:
    """A root folder with Debian and its Python, standing for the Python image that the Dockerfiles name."""
    root = settings.cache / "base" / "python" / "layer"
    if not root.exists():
        partial = root.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        packages = "--include=python3,python3-pip,ca-certificates"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, "bookworm", str(partial)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for folder in ("var/cache/apt", "var/lib/apt/lists"):
            shutil.rmtree(partial / folder)
            (partial / folder).mkdir()
        partial.rename(root)
    return root


def _provide_busybox(settings: Settings) -> Path:
    """A root folder with one static program that does nothing: what a pod's sandbox runs."""
    root = settings.cache / "base" / "pause" / "layer"
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "busybox").exists():
        shutil.copy("/bin/busybox", root / "busybox")
    return root
