"""Each node that would end up with uncapped or broken pods is refused, with a sentence that says what to do."""

import os
import subprocess
from pathlib import Path

import pytest

from libsync import files, node, selinux
from libsync.config import Settings
from libsync.errors import RefusalError
from libsync.install import differences, install, load_release
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
    assert [path.name for path in base.iterdir()] == ["libvgpu.so"]


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


def test_a_directory_under_a_files_name_is_refused(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    """A container runtime makes one where a mount's source is missing."""
    (tmp_path / "base" / "abi-1" / "ld.so.preload").mkdir(parents=True)
    done = libsync("--target", tmp_path / "base", "--library", build_library(), "--once")
    refused(done, f"{tmp_path}/base/abi-1/ld.so.preload is no ordinary file", "remove it")


def test_looking_at_it_each_minute_keeps_nothing_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(RefusalError, match="no ordinary file"):
            files.read_regular(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["base", "base/abi-1"])
def test_a_link_in_place_of_a_directory_is_refused_by_install_and_uninstall(
    name: str, build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    """What lies behind it may look as ours does, and stays."""
    libsync("--target", tmp_path / "other", "--library", build_library(), "--once")
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "other" if name == "base" else tmp_path / "other" / "abi-1")
    for mode in ("--once", "--uninstall", "--check"):
        done = libsync("--target", tmp_path / "base", "--library", build_library("1.1"), mode)
        refused(done, f"{link} is a symbolic link")
    assert (tmp_path / "other" / "abi-1" / "libvgpu.so").read_bytes() == build_library().read_bytes()


@pytest.mark.parametrize(
    ("mode", "owner", "word"),
    [(0o755, (12345, 0), "uid 12345"), (0o775, (0, 12345), "gid 12345"), (0o757, (0, 0), "everybody")],
)
def test_a_directory_that_somebody_else_can_change_is_refused(
    mode: int, owner: tuple[int, int], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.stat_result((0o40000 | mode, 1, 1, 2, *owner, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda _: status)
    with pytest.raises(RefusalError, match=word):
        node.check_place(tmp_path)


def test_who_may_not_make_the_directory_is_told_to_be_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", deny)
    with pytest.raises(RefusalError, match="Permission denied; run libsync as root"):
        node.make_directory(tmp_path / "base", parents=True)


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


def test_labels_are_there_before_the_names_and_are_repaired(
    build_library: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`restorecon` gives the files of /var another type, with which containers may not map them."""
    labels: dict[int, str] = {}

    def label(path: Path, selinux_type: str) -> None:
        assert path.is_dir() or path.name.startswith(".libsync-"), "labelled too late"
        labels[path.stat().st_ino] = selinux_type

    monkeypatch.setattr(selinux, "is_enabled", lambda: True)
    monkeypatch.setattr(selinux, "label", label)
    monkeypatch.setattr(selinux, "read_type", lambda path: labels.get(path.stat().st_ino, ""))
    release = load_release(build_library())
    settings = Settings(tmp_path / "base", build_library(), "once", 60.0, None, "container_file_t")
    install(release, settings)
    directory = tmp_path / "base" / "abi-1"
    inodes = [path.stat().st_ino for path in (directory, *directory.iterdir())]
    assert {labels.get(inode) for inode in inodes} == {"container_file_t"}
    assert differences(release, settings) == []
    labels[(directory / "libvgpu.so").stat().st_ino] = "var_lib_t"
    assert "SELinux type" in differences(release, settings)[0]
    assert install(release, settings, ours=True) == ["libvgpu.so"]
    assert labels[(directory / "libvgpu.so").stat().st_ino] == "container_file_t"


def test_the_label_is_the_kernels_attribute(tmp_path: Path) -> None:
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
