"""What libsync leaves on a node, and that an upgrade or a repair harms nobody who uses the old file."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from libsync import files
from libsync.errors import RefusalError
from tests.libsync.conftest import Build, Run

# Loads the library, then answers each line on stdin with a call into it.
HOLDER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.vgpu_version.restype = ctypes.c_char_p
for _ in sys.stdin:
    print(library.vgpu_version().decode(), flush=True)
"""


def test_one_run_writes_library_preload_file_and_manifest(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    library, base = build_library(), tmp_path / "base"
    done = libsync("--target", base, "--library", library, "--once")
    assert done.returncode == 0, done.stderr
    directory = base / "abi-1"
    assert sorted(path.name for path in directory.iterdir()) == ["ld.so.preload", "libvgpu.so", "manifest.json"]
    assert (directory / "libvgpu.so").read_bytes() == library.read_bytes()
    assert (directory / "ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert json.loads((directory / "manifest.json").read_text()) == {
        "version": "1.0",
        "abi": 1,
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "arch": os.uname().machine,
    }
    assert json.loads((base / "status.json").read_text())["ready"] is True


def test_the_built_library_is_the_default(libsync: Run, tmp_path: Path) -> None:
    done = libsync("--target", tmp_path / "base", "--once")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "base" / "abi-1" / "libvgpu.so").is_file()


def test_any_uid_can_read_the_files_whatever_the_umask(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    prefix = ("sh", "-c", 'umask 077; exec "$@"', "sh")
    assert libsync("--target", base, "--library", build_library(), "--once", prefix=prefix).returncode == 0
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (base / "abi-1").iterdir()}
    assert modes == {"ld.so.preload": 0o644, "libvgpu.so": 0o644, "manifest.json": 0o644}
    assert (base / "abi-1").stat().st_mode & 0o7777 == 0o755


def test_second_run_writes_nothing(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library(), "--once")
    before = {path.name: path.stat().st_ino for path in (base / "abi-1").iterdir()}
    done = libsync("--target", base, "--library", build_library(), "--once")
    assert done.returncode == 0
    assert {path.name: path.stat().st_ino for path in (base / "abi-1").iterdir()} == before
    assert "wrote" not in done.stderr


def test_upgrade_leaves_a_running_holder_its_old_library(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    """A process that has the old file mapped calls it before and after; a new process gets the new one."""
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library("1.0"), "--once")
    installed = base / "abi-1" / "libvgpu.so"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(installed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None

        def ask() -> str:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write("\n")
            holder.stdin.flush()
            return holder.stdout.readline().strip()

        assert ask() == "1.0"
        done = libsync("--target", base, "--library", build_library("1.1"), "--once")
        assert done.returncode == 0, done.stderr
        assert ask() == "1.0"
        fresh = subprocess.run(
            [sys.executable, "-c", HOLDER, str(installed)], input="\n", capture_output=True, text=True, check=True
        )
        assert fresh.stdout.strip() == "1.1"
        holder.stdin.close()
        assert holder.wait() == 0


def test_a_caller_notices_nothing_of_many_upgrades(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    """One process calls the library without a pause while it is replaced again and again."""
    base = tmp_path / "base"
    libraries = [build_library("1.0"), build_library("1.1")]
    libsync("--target", base, "--library", libraries[0], "--once")
    caller = (
        "import ctypes, sys, threading\n"
        f"library = ctypes.CDLL('{base}/abi-1/libvgpu.so')\n"
        "ended = threading.Event()\n"
        "threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()\n"
        "print(flush=True)\n"
        "while not ended.is_set(): assert library.vgpu_abi() == 1\n"
    )
    with subprocess.Popen([sys.executable, "-c", caller], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        for number in range(6):
            assert libsync("--target", base, "--library", libraries[number % 2], "--once").returncode == 0
        process.stdin.close()
        assert process.wait() == 0


def test_a_new_abi_goes_beside_the_old_one(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library("1.0", abi=1), "--once")
    old = (base / "abi-1" / "libvgpu.so").stat().st_ino
    libsync("--target", base, "--library", build_library("2.0", abi=2), "--once")
    assert (base / "abi-1" / "libvgpu.so").stat().st_ino == old
    assert json.loads((base / "abi-2" / "manifest.json").read_text())["version"] == "2.0"


def test_an_images_directory_gives_the_nodes_own_architecture(
    build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    for arch in ("x86_64", "aarch64"):
        (tmp_path / "image" / arch).mkdir(parents=True)
        (tmp_path / "image" / arch / "libvgpu.so").write_bytes(build_library(arch=arch).read_bytes())
    done = libsync("--target", tmp_path / "base", "--library", tmp_path / "image", "--once")
    assert done.returncode == 0, done.stderr
    own = build_library(arch=os.uname().machine).read_bytes()
    assert (tmp_path / "base" / "abi-1" / "libvgpu.so").read_bytes() == own


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_failed_write_leaves_the_old_content_and_no_rubbish(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "libvgpu.so"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(RefusalError, match="nothing was left half-written"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_a_killed_libsync_go_away(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    directory = tmp_path / "base" / "abi-1"
    directory.mkdir(parents=True)
    (directory / ".libsync-libvgpu.so.4711").write_bytes(b"half")
    assert libsync("--target", tmp_path / "base", "--library", build_library(), "--once").returncode == 0
    assert sorted(path.name for path in directory.iterdir()) == ["ld.so.preload", "libvgpu.so", "manifest.json"]


def test_a_run_killed_between_two_files_is_completed_by_the_next(
    build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    """Killed in the middle of an upgrade: the new manifest lies beside the old library."""
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library("1.1"), "--once")
    manifest = (base / "abi-1" / "manifest.json").read_bytes()
    libsync("--target", base, "--library", build_library("1.0"), "--once")
    (base / "abi-1" / "manifest.json").write_bytes(manifest)
    done = libsync("--target", base, "--library", build_library("1.1"), "--once")
    assert done.returncode == 0, done.stderr
    assert (base / "abi-1" / "libvgpu.so").read_bytes() == build_library("1.1").read_bytes()
