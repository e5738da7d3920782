"""Small libraries that answer as libvgpu.so does, built by the project's compiler: libsync needs no more."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Build = Callable[..., Path]
Run = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = """
static const char padding[{padding_bytes}] = "{version}";
const char *vgpu_version(void) {{ return padding; }}
int vgpu_abi(void) {{ return {abi}; }}
{more}
"""


@pytest.fixture(scope="session")
def build_library(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a library of a version, abi, size and machine; the same one is built once."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(
        version: str = "1.0", abi: int = 1, arch: str = "x86_64", more: str = "", padding_bytes: int = 65536
    ) -> Path:
        directory = folder / f"{version}-{abi}-{arch}-{abs(hash(more))}-{padding_bytes}"
        library = directory / "libvgpu.so"
        if not library.exists():
            directory.mkdir()
            source = directory / "library.c"
            source.write_text(SOURCE.format(version=version, abi=abi, more=more, padding_bytes=padding_bytes))
            command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.2.17", "-shared", "-fPIC"]
            subprocess.run([*command, "-o", str(library), str(source)], check=True, cwd=directory)
        return library

    return build


@pytest.fixture
def libsync() -> Run:
    """Run `python -m libsync`, with an environment of its own."""

    def run(*arguments: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KRI_LIBSYNC_")}
        return subprocess.run(
            [*prefix, sys.executable, "-m", "libsync", *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    return run
