"""The project's images, and those that the cluster's tests use, as one archive."""

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
TAG = "e2e"
PROBE_IMAGE = "docker.io/kai-resource-isolator/probe:0.1.0"  # as quickstart.yaml names it

# What the Dockerfiles may add to the Python image, unpacked.
LIMITS_BYTES = {"webhook": 120 << 20, "libsync": 60 << 20}
_PYTHON_IMAGE = "python:3.11.13-slim-bookworm"


def build_all(settings: Settings) -> Path:
    """An archive with webhook, libsync, probe, which tenants' pods run, and pause, which every pod's sandbox runs."""
    base = provide_base(settings)
    builder = Builder(ROOT, settings.cache / "layers", {_PYTHON_IMAGE: base})
    contexts = {"library": ROOT / "build"}
    images = {}
    for name, limit in LIMITS_BYTES.items():
        image = builder.build(f"Dockerfile.{name}", contexts)
        if image.own_bytes > limit:
            raise RuntimeError(f"image {name} adds {image.own_bytes >> 20} MiB to Python's, more than {limit >> 20}")
        sys.stdout.write(f"image {name}: {image.own_bytes >> 20} MiB beyond the Python base\n")
        images[f"{REGISTRY}/kai-resource-isolator/{name}:{TAG}"] = image
    idle = Stage(base="", name="", user="0:0", entrypoint=["/busybox", "sleep", "2147483647"])
    images[PAUSE_IMAGE] = Image((_provide_busybox(settings),), 0, idle)
    images[PROBE_IMAGE] = builder.build("e2e/images/Dockerfile.probe", contexts)
    write_archive(images, ARCHIVE)
    builder.remove_unused()
    return ARCHIVE


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
