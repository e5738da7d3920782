"""Killed at any instant, two at once, a self-test that fails on the node only: pods never meet half of it."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from libsync import names, node
from libsync.__main__ import Keeper
from libsync.config import Settings
from libsync.errors import RefusalError
from libsync.install import install, load_release
from libsync.status import Status, publish
from tests.libsync.conftest import Build, Run

COMPLETE = ["ld.so.preload", "libvgpu.so", "manifest.json"]
# Each of them is process 1, as in a pod.
AS_IN_A_POD = ("unshare", "--user", "--map-root-user", "--pid", "--fork")


def settings(base: Path, library: Path) -> Settings:
    return Settings(base, library, "once", 60.0, None, "container_file_t")


def look_and_die(settings: Settings, steps: int) -> bool:
    """One look in a process that is killed before its n-th change or opening of a file; whether it came to that."""
    child = os.fork()
    if child == 0:
        left = steps

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event.startswith(("open", "os.")) and str(settings.target) in str(arguments):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        os._exit(0 if Keeper(settings).look() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("before", [None, "1.0"], ids=["first installation", "upgrade"])
def test_killed_at_any_instant_it_leaves_old_or_new_and_the_next_run_completes_it(
    before: str | None, build_library: Build, tmp_path: Path
) -> None:
    new = build_library("1.1")
    allowed = [new.read_bytes(), *([build_library(before).read_bytes()] if before else [])]
    for steps in range(1, 200):
        base = tmp_path / str(steps)
        directory = base / "abi-1"
        if before:
            assert Keeper(settings(base, build_library(before))).look()
        killed = look_and_die(settings(base, new), steps)
        if (directory / names.PRELOAD_FILE).exists():
            assert (directory / names.PRELOAD_FILE).read_text() == names.PRELOAD_TEXT
            assert (directory / names.LIBRARY_FILE).read_bytes() in allowed
        assert Keeper(settings(base, new)).look(), f"not completed after {steps} steps"
        assert sorted(path.name for path in directory.iterdir()) == COMPLETE
        assert sorted(path.name for path in base.iterdir()) == ["abi-1", "status.json"]
        assert (directory / names.LIBRARY_FILE).read_bytes() == new.read_bytes()
        if not killed:
            break
    assert not killed
    assert steps > len(COMPLETE) * 2, "the kills never reached the files"


def test_two_releases_at_once_install_one_of_them_whole(build_library: Build, tmp_path: Path) -> None:
    """As in a rolling update, again and again on a new node: neither fails, nothing of either is left over."""
    libraries = [build_library("1.0"), build_library("1.1")]
    for number in range(4):
        base = tmp_path / str(number)
        commands = [
            [*AS_IN_A_POD, sys.executable, "-m", "libsync", "--target", str(base), "--library", str(library), "--once"]
            for library in libraries * 2
        ]
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        for process in running:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
        assert sorted(path.name for path in (base / "abi-1").iterdir()) == COMPLETE
        assert sorted(path.name for path in base.iterdir()) == ["abi-1", "status.json"]
        content = (base / "abi-1" / "libvgpu.so").read_bytes()
        assert content in [library.read_bytes() for library in libraries]
        assert load_release(base / "abi-1").sha256 in (base / "abi-1" / "manifest.json").read_text()


def test_a_libsync_that_never_ends_is_told_and_not_waited_for(
    build_library: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_LOCK_SECONDS", 0.2)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    release = load_release(build_library())
    with pytest.raises(RefusalError, match="another libsync"):
        install(release, settings(tmp_path, build_library()))
    (tmp_path / "abi-1").mkdir()
    with pytest.raises(RefusalError, match="another libsync"):
        publish(Status(ready=True), tmp_path, None)
    os.close(other)
    assert install(release, settings(tmp_path, build_library()))


def test_a_directory_that_another_libsync_makes_at_that_moment_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(Path, "is_dir", lambda _: next(answers))
    node.make_directory(tmp_path)


@pytest.fixture
def fails_on_the_node(build_library: Build, tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Build a library that crashes whoever loads it once a file exists; both paths."""

    def build(version: str) -> tuple[Path, Path]:
        deny = tmp_path / "deny"
        crash = (
            "#include <unistd.h>\n__attribute__((constructor)) static void crash(void) "
            f'{{ if (access("{deny}", F_OK) == 0) __builtin_trap(); }}'
        )
        return build_library(version, more=crash), deny

    return build


def test_what_doesnt_load_on_the_node_never_gets_its_name(
    fails_on_the_node: Callable[[str], tuple[Path, Path]], build_library: Build, tmp_path: Path
) -> None:
    """It stays refused at each further look, and the old release stays in place and in use."""
    base = tmp_path / "base"
    library, deny = fails_on_the_node("1.1")
    assert Keeper(settings(base, build_library("1.0"))).look()
    release = load_release(library)
    deny.touch()
    for _ in range(2):
        with pytest.raises(RefusalError, match="kills the process that loads it"):
            install(release, settings(base, library))
        assert (base / "abi-1" / "libvgpu.so").read_bytes() == build_library("1.0").read_bytes()
    deny.unlink()
    assert "libvgpu.so" in install(release, settings(base, library))


def test_a_restarted_libsync_proves_what_it_finds(
    fails_on_the_node: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    library, deny = fails_on_the_node("1.0")
    release = load_release(library)
    install(release, settings(base, library))
    deny.touch()
    with pytest.raises(RefusalError, match="self-test"):
        install(release, settings(base, library))


def test_uninstall_and_check_end_with_a_sentence_where_nothing_can_be_written(
    build_library: Build, libsync: Run, tmp_path: Path
) -> None:
    base, library = tmp_path / "base", build_library()
    assert libsync("--target", base, "--library", library, "--once").returncode == 0
    script = f'mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}; exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh")
    for mode in ("--uninstall", "--check"):
        done = libsync("--target", base, "--library", library, mode, prefix=prefix)
        assert done.returncode == 1
        assert "read-only file system" in done.stderr.lower()
        assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (base / "abi-1").iterdir()) == COMPLETE
