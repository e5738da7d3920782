"""libsync over time: it repairs, counts, says when it isn't ready, costs nothing, removes only when it may."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libsync.__main__ import Keeper
from libsync.config import parse
from libsync.install import install, load_release
from tests.libsync.conftest import ROOT, Build, Run

Start = Callable[..., subprocess.Popen[str]]
IDLE_LIMIT_KIB = 25 * 1024


@pytest.fixture
def start() -> Iterator[Start]:
    """Start libsync's loop; it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-m", "libsync", *map(str, arguments)], cwd=ROOT, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait for a condition; the limit only ends a test that failed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def read_status(base: Path) -> dict[str, object]:
    """libsync's status file; empty while there is none (the ready file comes before it)."""
    path = base / "status.json"
    fields: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    return fields


def test_what_somebody_deletes_or_changes_is_repaired_and_counted(
    build_library: Build, start: Start, tmp_path: Path
) -> None:
    base, ready, library = tmp_path / "base", tmp_path / "run" / "ready", build_library()
    start("--target", base, "--library", library, "--interval-seconds", "0.1", "--ready-file", ready)
    wait_until(ready.exists, "ready")
    directory = base / "abi-1"
    wait_until(lambda: read_status(base).get("repairs_total") == 0, "nothing repaired yet")
    (directory / "ld.so.preload").unlink()
    wait_until((directory / "ld.so.preload").exists, "preload file repaired")
    wait_until(lambda: read_status(base)["repairs_total"] == 1, "repair counted")
    (directory / "manifest.json").unlink()
    (directory / "libvgpu.so").write_bytes(b"something else")
    wait_until(lambda: (directory / "libvgpu.so").read_bytes() == library.read_bytes(), "library repaired")
    (directory / "libvgpu.so").chmod(0o600)
    wait_until(lambda: (directory / "libvgpu.so").stat().st_mode & 0o777 == 0o644, "mode repaired")
    directory.chmod(0o700)
    wait_until(lambda: directory.stat().st_mode & 0o777 == 0o755, "directory's mode repaired")
    assert ready.exists()


def test_repairs_go_on_being_counted_after_a_restart(build_library: Build, start: Start, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "status.json").write_text('{"repairs_total": 41}')
    start("--target", base, "--library", build_library(), "--interval-seconds", "0.1")
    wait_until((base / "abi-1" / "ld.so.preload").exists, "installed")
    wait_until(lambda: read_status(base).get("ready") is True, "ready")
    (base / "abi-1" / "ld.so.preload").write_text("")
    wait_until(lambda: read_status(base)["repairs_total"] == 42, "repair counted")


def test_not_ready_while_refused_and_ready_again_after(build_library: Build, start: Start, tmp_path: Path) -> None:
    base, ready = tmp_path / "base", tmp_path / "ready"
    start("--target", base, "--library", build_library(), "--interval-seconds", "0.1", "--ready-file", ready)
    wait_until(ready.exists, "ready")
    (base / "libvgpu.so").touch()
    wait_until(lambda: not ready.exists(), "not ready")
    wait_until(lambda: "another product" in str(read_status(base)["refusal"]), "refusal told")
    (base / "libvgpu.so").unlink()
    wait_until(ready.exists, "ready again")


def test_each_trouble_is_said_once(build_library: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base"
    keeper = Keeper(parse(["--target", str(base), "--library", str(build_library())], {}))
    assert keeper.look()
    (base / "status.json").unlink()
    (base / "status.json").mkdir()
    assert [keeper.look(), keeper.look()] == [False, False]
    (base / "libvgpu.so").touch()
    assert [keeper.look(), keeper.look()] == [False, False]
    said = capsys.readouterr().err
    assert said.count("can't report") == 1
    assert said.count("another product") == 1


def test_a_file_that_changed_hands_is_written_anew(
    build_library: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could write into it, whatever its mode."""
    release = load_release(build_library())
    settings = parse(["--target", str(tmp_path / "base"), "--library", str(build_library())], {})
    install(release, settings)
    stranger, real = (tmp_path / "base" / "abi-1" / "libvgpu.so").stat().st_ino, Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        status = real(path, **options)
        return os.stat_result([*status[:4], 12345, *status[5:10]]) if status.st_ino == stranger else status

    monkeypatch.setattr(Path, "stat", stat)
    assert install(release, settings, ours=True) == ["libvgpu.so"]


def test_a_ready_file_that_a_killed_libsync_left_goes_before_the_first_look(
    build_library: Build, start: Start, tmp_path: Path
) -> None:
    loading, ready = tmp_path / "loading", tmp_path / "ready"
    slow = (
        "#include <fcntl.h>\n#include <unistd.h>\n__attribute__((constructor)) static void wait(void) "
        f'{{ open("{loading}", O_CREAT, 0600); sleep(3); }}'
    )
    ready.touch()
    start("--target", tmp_path / "base", "--library", build_library(more=slow), "--ready-file", ready)
    wait_until(loading.exists, "self-test begun")
    assert not ready.exists()
    wait_until(ready.exists, "ready")


def test_it_ends_at_once_when_asked_and_takes_its_readiness_along(
    build_library: Build, start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    process = start("--target", tmp_path / "base", "--library", build_library(), "--ready-file", ready)
    wait_until(ready.exists, "ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert not ready.exists()


def test_idle_it_needs_under_25_mib_and_no_time(build_library: Build, start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = start("--target", tmp_path / "base", "--library", build_library(), "--ready-file", ready)
    wait_until(ready.exists, "ready")
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    assert int(fields["VmRSS"].split()[0]) < IDLE_LIMIT_KIB

    def used_ticks() -> list[str]:
        return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]

    def idle() -> bool:
        before = used_ticks()
        time.sleep(1)
        return used_ticks() == before

    wait_until(idle, "a second without any work")


def test_check_tells_and_changes_nothing(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base, library = tmp_path / "base", build_library()
    missing = libsync("--target", base, "--library", library, "--check")
    assert missing.returncode == 1
    assert "is missing" in missing.stderr
    assert not base.exists()
    libsync("--target", base, "--library", library, "--once")
    assert libsync("--target", base, "--library", library, "--check").returncode == 0
    other = libsync("--target", base, "--library", build_library("1.1"), "--check")
    assert other.returncode == 1
    assert "libvgpu.so differs from this release's" in other.stderr


def test_uninstall_waits_for_processes_that_use_the_library(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    """The user is in a pid namespace of its own, as a pod's process is."""
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library(), "--once")
    program = f"import ctypes, sys; ctypes.CDLL('{base}/abi-1/libvgpu.so'); print(flush=True); sys.stdin.read()"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        user.stdout.readline()
        refused = libsync("--target", base, "--uninstall")
        assert refused.returncode == 1
        assert "processes use the library" in refused.stderr
        assert (base / "abi-1" / "ld.so.preload").exists()
        user.stdin.close()
        user.wait()
    done = libsync("--target", base, "--uninstall")
    assert done.returncode == 0, done.stderr
    assert not base.exists()


def test_uninstall_leaves_what_is_not_ours(build_library: Build, libsync: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    libsync("--target", base, "--library", build_library(), "--once")
    (base / "abi-1" / "notes.txt").touch()
    (base / "abi-7").mkdir()
    (base / "abi-7" / "libvgpu.so").touch()
    assert libsync("--target", base, "--uninstall").returncode == 1
    assert (base / "abi-1" / "notes.txt").exists()
    assert (base / "abi-7" / "libvgpu.so").exists()


def test_each_flag_has_a_twin_in_the_environment(tmp_path: Path) -> None:
    environment = {
        "KRI_LIBSYNC_TARGET": str(tmp_path),
        "KRI_LIBSYNC_LIBRARY": "/image",
        "KRI_LIBSYNC_INTERVAL_SECONDS": "7",
        "KRI_LIBSYNC_READY_FILE": "/run/ready",
        "KRI_LIBSYNC_ONCE": "true",
        "KRI_LIBSYNC_PRESET": "bottlerocket",
    }
    settings = parse([], environment)
    assert (settings.target, settings.library, settings.ready_file) == (tmp_path, Path("/image"), Path("/run/ready"))
    assert (settings.interval_seconds, settings.mode, settings.selinux_type) == (7.0, "once", "data_t")
    assert parse(["--target", "/other"], environment).target == Path("/other")


def test_an_empty_variable_counts_as_none() -> None:
    names = ("TARGET", "LIBRARY", "INTERVAL_SECONDS", "READY_FILE", "ONCE", "PRESET", "SELINUX_TYPE")
    assert parse([], {f"KRI_LIBSYNC_{name}": "" for name in names}) == parse([], {})


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--interval-seconds", "0"], {}, "more than 0"),
        (["--once", "--check"], {}, "together"),
        (["--preset", "plan9"], {}, "plan9"),
        (["--interval-seconds", "inf"], {}, "at most"),
        ([], {"KRI_LIBSYNC_ONCE": "maybe"}, "neither true nor false"),
        ([], {"KRI_LIBSYNC_PRESET": "plan9"}, "plan9"),
        ([], {"KRI_LIBSYNC_INTERVAL_SECONDS": "often"}, "often"),
    ],
)
def test_a_wrong_setting_ends_with_status_2_and_a_sentence(
    arguments: list[str], environment: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environment)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_explains_each_preset(libsync: Run) -> None:
    shown = libsync("--help")
    assert shown.returncode == 0
    for name in ("ordinary", "openshift", "gke-cos", "bottlerocket", "talos"):
        assert name in shown.stdout
