"""Each node that would end up with uncapped or broken pods is refused, with a sentence that says what to do."""

import subprocess
from pathlib import Path

import pytest

from libsync import selinux
from libsync.errors import RefusalError
from tests.libsync.conftest import Build, Run

# Mounts need root or a user namespace; inside it they end with the command.
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec")


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """It ended with status 1 and one sentence that holds the words, without a traceback."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_missing_library_is_refused(libsync: Run, tmp_path: Path) -> None:
    refused(libsync("--target", tmp_path / "base", "--library", tmp_path / "none.so", "--once"), "make build")


def test_wrong_architecture_is_refused(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    library = build_library(arch="aarch64")
    refused(
        libsync("--target", tmp_path / "base", "--library", library, "--once"), "for aarch64", "this node is x86_64"
    )
    assert not (tmp_path / "base" / "abi-1").exists()


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(64)])
def test_a_file_that_is_no_library_is_refused(content: bytes, libsync: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(libsync("--target", tmp_path / "base", "--library", tmp_path / "file", "--once"), "ELF")


def test_a_library_that_crashes_is_refused_and_never_installed(
    build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    crash = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"
    done = libsync("--target", tmp_path / "base", "--library", build_library(more=crash), "--once")
    refused(done, "kills the process that loads it")
    assert not (tmp_path / "base" / "abi-1").exists()


def test_a_library_with_an_unresolved_symbol_is_refused(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    more = "int nowhere(void); int call(void) { return nowhere(); }"
    done = libsync("--target", tmp_path / "base", "--library", build_library(more=more), "--once")
    refused(done, "self-test", "nowhere")


def test_another_products_files_are_refused_and_stay(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "libvgpu.so").write_bytes(b"HAMi's")
    refused(libsync("--target", base, "--library", build_library(), "--once"), "another product", "--target")
    assert (base / "libvgpu.so").read_bytes() == b"HAMi's"
    assert [path.name for path in (base / "abi-1").iterdir()] == []


def test_a_foreign_library_under_our_name_is_refused_and_stays(
    build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    directory = tmp_path / "base" / "abi-1"
    directory.mkdir(parents=True)
    (directory / "libvgpu.so").write_bytes(b"somebody's")
    refused(libsync("--target", tmp_path / "base", "--library", build_library(), "--once"), "isn't ours")
    assert (directory / "libvgpu.so").read_bytes() == b"somebody's"


def test_unknown_files_in_our_directory_are_refused(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    directory = tmp_path / "base" / "abi-1"
    directory.mkdir(parents=True)
    (directory / "other.so").touch()
    refused(libsync("--target", tmp_path / "base", "--library", build_library(), "--once"), "other.so")


def test_a_link_under_our_name_is_never_followed(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    directory = tmp_path / "base" / "abi-1"
    directory.mkdir(parents=True)
    (directory / "ld.so.preload").symlink_to(victim)
    refused(libsync("--target", tmp_path / "base", "--library", build_library(), "--once"), "symbolic link")
    assert victim.read_bytes() == b"precious"


def test_a_base_that_is_a_file_is_refused(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    (tmp_path / "base").touch()
    refused(libsync("--target", tmp_path / "base", "--library", build_library(), "--once"), "no directory")


@pytest.mark.parametrize("name", ["", "abi-1"])
def test_a_directory_that_everybody_can_write_is_refused_and_stays_as_it_is(
    name: str, build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    """Its mode isn't repaired: with a wrong --target that would be somebody else's directory."""
    directory = tmp_path / "base" / name
    directory.mkdir(parents=True)
    directory.chmod(0o1777)
    refused(libsync("--target", tmp_path / "base", "--library", build_library(), "--once"), "written by everybody")
    assert directory.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize(("option", "word"), [("noexec", "noexec mount"), ("ro", "read-only")])
def test_a_mount_that_pods_cant_use_is_refused(
    option: str, word: str, build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    script = f'mount -t tmpfs -o mode=755,{option} none {tmp_path}; exec "$@"'
    library = build_library()
    done = libsync("--target", tmp_path / "base", "--library", library, "--once", prefix=(*OWN_MOUNTS, script, "sh"))
    refused(done, word, "--preset")


def test_a_full_disk_leaves_the_old_release_whole(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    """A disk with room for one library only: the upgrade is refused, the old one is still there and works."""
    old, new = build_library("1.0", padding_bytes=300_000), build_library("1.1", padding_bytes=900_000)
    script = f"""
        mount -t tmpfs -o mode=755,size=600k none {tmp_path}
        "$0" -m libsync --target {tmp_path} --library {old} --once
        "$@" && exit 7
        cmp {old} {tmp_path}/abi-1/libvgpu.so
        test "$(ls -A {tmp_path}/abi-1 | tr '\\n' ' ')" = "ld.so.preload libvgpu.so manifest.json "
        exit 1
    """
    done = libsync("--target", tmp_path, "--library", new, "--once", prefix=(*OWN_MOUNTS, script, ".venv/bin/python"))
    refused(done, "No space left on device", "nothing was left half-written")


def test_selinux_label_is_set_before_the_file_gets_its_name(tmp_path: Path) -> None:
    calls = []
    selinux.label(tmp_path, "container_file_t", lambda *call: calls.append(call))
    assert calls == [(tmp_path, "security.selinux", b"system_u:object_r:container_file_t:s0\0")]


def test_a_label_that_cant_be_set_is_refused_with_the_remedy(tmp_path: Path) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(RefusalError, match="chcon -R -t container_file_t"):
        selinux.label(tmp_path / "abi-1", "container_file_t", deny)


@pytest.mark.parametrize(("text", "enabled"), [("nodev\tselinuxfs\n\text4\n", True), ("nodev\ttmpfs\n", False)])
def test_selinux_is_seen_by_its_file_system(text: str, enabled: bool, tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text(text)
    assert selinux.is_enabled(tmp_path / "filesystems") is enabled
