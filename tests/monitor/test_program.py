"""The real program: two processes, its pages, its manners at the start and at the end."""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor import exporter, region
from tests.monitor.conftest import ROOT, Monitor, samples, state, value
from tests.monitor.tree import MIB, Node, WrittenDevice, WrittenSlot, uid

Start = Callable[..., Monitor]
ASKED = {"gpu-memory": "4096"}


def quick_start(node: Node) -> Path:
    pod = node.pod(1, "train", ASKED)
    node.quota(pod, limit="4147m", gpu_memory="4096")
    region = node.region(pod, [WrittenDevice()], {0: WrittenSlot([(102 * MIB, 0, 3072 * MIB)])})
    node.pods_file()
    return region


def without_driver() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "SIMGPU_", "KRI_", "KUBERNETES_"))}


def exporter_of(monitor: Monitor) -> int:
    children = Path(f"/proc/{monitor.process.pid}/task/{monitor.process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def test_a_scrape_shows_the_regions_as_they_are_now(node: Node, start: Start) -> None:
    written = quick_start(node)
    monitor = start(node.root, "--pods-file", str(node.pods_file()), env=without_driver())
    page = monitor.get()
    assert value(page, "hami_vgpu_memory_used_bytes", pod="train") == 3174 * MIB
    assert value(page, "hami_vgpu_memory_limit_bytes", pod="train") == 4147 * MIB
    assert value(page, "kai_isolator_promised_bytes", pod="train", source="kai") == 4147 * MIB
    assert state(page, "train") == "enforced"
    node.close()
    assert value(monitor.get(), "hami_vgpu_memory_used_bytes", pod="train") == 0, "the process is dead"
    shutil.rmtree(written.parents[3])
    node.pods.clear()
    node.pods_file()
    assert "train" not in monitor.get(), "the pod is gone and so are its series"


def test_without_pod_names_the_uid_has_to_do(node: Node, start: Start) -> None:
    quick_start(node)
    page = start(node.root, env=without_driver()).get()
    assert value(page, "hami_vgpu_memory_used_bytes", pod=uid(1), namespace="", container="main") == 3174 * MIB


def test_no_driver_and_no_kubelet_are_said_and_survived(tmp_path: Path, start: Start) -> None:
    monitor = start(tmp_path / "nowhere", env=without_driver())
    page = monitor.get()
    assert value(page, "kai_isolator_source_up", source="nvml") == 0
    assert value(page, "kai_isolator_source_up", source="regions") == 0
    assert value(page, "kai_isolator_source_up", source="proc") == 1
    assert (value(page, "kai_isolator_source_errors_total", source="nvml") or 0) >= 1
    assert monitor.get("/healthz") == "ok\n"


def test_the_kubelet_may_come_later(tmp_path: Path, start: Start) -> None:
    node = Node(tmp_path / "late")
    monitor = start(node.root, env=without_driver())
    assert value(monitor.get(), "kai_isolator_source_up", source="regions") == 0
    node.pod(1, "train", ASKED)
    node.region(uid(1), [WrittenDevice()])
    page = monitor.get()
    assert value(page, "kai_isolator_source_up", source="regions") == 1
    assert value(page, "hami_vgpu_memory_used_bytes", pod=uid(1)) == 0


def test_the_reader_can_make_no_socket_no_file_and_no_process(node: Node, start: Start, tmp_path: Path) -> None:
    """Its filter and lost privileges are what the kernel says they are; what they forbid is tried in one like it."""
    monitor = start(node.root, env=without_driver())
    monitor.get()
    status = Path(f"/proc/{monitor.process.pid}/status").read_text()
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    attempts = f"""
import os, socket, subprocess
from monitor import confine
confine.forbid_new_privileges(); confine.forbid_calls()
def denied(call, *arguments):
    try: call(*arguments)
    except PermissionError: return
    print(call.__name__, "is allowed")
denied(socket.socket)
denied(subprocess.run, ["true"])
denied(os.execv, "/bin/true", ["true"])
denied(os.mkdir, {str(tmp_path / "x")!r})
denied(os.unlink, {str(ROOT / "Makefile.none")!r})
denied(os.rename, {str(tmp_path / "a")!r}, {str(tmp_path / "b")!r})
denied(os.symlink, "a", {str(tmp_path / "c")!r})
denied(os.mknod, {str(tmp_path / "d")!r})
denied(os.fork)
denied(os.kill, os.getppid(), 0)
denied(os.truncate, {str(tmp_path / "e")!r}, 0)
denied(open, {str(tmp_path / "f")!r}, "w")
denied(os.open, "/dev/null", os.O_RDWR)
print(len(os.listdir("/proc/self/fd")) > 0)
"""
    done = subprocess.run([sys.executable, "-c", attempts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stdout + done.stderr


def python_for_nobody(env: dict[str, str]) -> str | None:
    """A Python that user nobody can run, with our packages: a developer's own often lies in a closed home."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run(
                [python, "-c", "import monitor.exporter"],
                env=env, cwd="/", check=True, capture_output=True, user=65534, group=65534, extra_groups=[],
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return None


def test_started_as_root_with_a_user_each_process_has_what_it_needs_and_no_more(node: Node, start: Start) -> None:
    if os.geteuid() != 0:
        print("only root can give rights up: nothing to see here")
        return
    quick_start(node)
    for folder in (node.root, *node.root.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o11)
    (node.root / "pods").chmod(0o750)
    readable = node.pods_file()
    packages = f"{ROOT}:{sysconfig.get_path('purelib')}"
    env = {**without_driver(), "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    python = python_for_nobody(env)
    if not python:
        print("nobody can run no Python with our packages on this machine: nothing to see here")
        return
    monitor = start(node.root, "--pods-file", str(readable), "--user", "65534", env=env, python=python)
    assert value(monitor.get(), "hami_vgpu_memory_used_bytes", pod="train") == 3174 * MIB
    reader = Path(f"/proc/{monitor.process.pid}/status").read_text()
    exporter = Path(f"/proc/{exporter_of(monitor)}/status").read_text()
    assert re.search(r"^Uid:\s+0\s+0\s+0\s+0$", reader, re.MULTILINE)
    assert re.search(r"^Uid:(\s+65534){4}$", exporter, re.MULTILINE)
    assert re.search(r"^Gid:(\s+65534){4}$", exporter, re.MULTILINE)
    assert re.search(r"^Groups:\s*$", exporter, re.MULTILINE)
    for text in (reader, exporter):
        assert re.search(r"^CapEff:\s+0+$", text, re.MULTILINE)
        assert re.search(r"^CapPrm:\s+0+$", text, re.MULTILINE)
    inodes = [str(link.readlink()) for link in Path(f"/proc/{monitor.process.pid}/fd").iterdir()]
    assert not any(name.startswith("socket:") for name in inodes), inodes


def test_the_exporter_ends_with_its_reader(node: Node, start: Start) -> None:
    monitor = start(node.root, env=without_driver())
    exporter = exporter_of(monitor)
    monitor.process.kill()
    monitor.process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{exporter}").exists() and "State:\tZ" not in Path(f"/proc/{exporter}/status").read_text():
        assert time.monotonic() < deadline, "the exporter lives on without a reader"
        time.sleep(0.05)


def test_the_reader_ends_with_its_exporter(node: Node, start: Start) -> None:
    monitor = start(node.root, env=without_driver())
    os.kill(exporter_of(monitor), signal.SIGKILL)
    assert monitor.process.wait(20) != 0


def test_sigterm_ends_both_at_once(node: Node, start: Start) -> None:
    monitor = start(node.root, "--interval", "600", env=without_driver())
    assert monitor.stop() == 0
    with pytest.raises(OSError, match="refused"):
        monitor.get()


def test_a_port_in_use_is_said(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "monitor", "--listen", address, "--kubelet-root", str(node.root)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "can't listen on 127.0.0.1" in done.stderr


def test_it_listens_without_asking_the_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """http.server's own class asks for the host's name first: 10 s and more where no DNS answers."""

    def asked(*_: object) -> str:
        raise AssertionError("it asked for a name")

    for name in ("getfqdn", "gethostbyaddr", "gethostname"):
        monkeypatch.setattr(socket, name, asked)
    for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104
        exporter.Server((host, 0), {}).server_close()


def test_slow_and_silent_clients_hold_up_nobody(node: Node, start: Start) -> None:
    monitor = start(node.root, env=without_driver())
    silent = [socket.create_connection(("127.0.0.1", monitor.port)) for _ in range(20)]
    try:
        assert "kai_isolator_build_info" in monitor.get()
    finally:
        for connection in silent:
            connection.close()


def test_legacy_names_come_only_when_asked_for(node: Node, start: Start) -> None:
    quick_start(node)
    assert "vGPU_device_memory_usage_in_bytes" not in samples(start(node.root, env=without_driver()).get())
    old = samples(start(node.root, "--legacy-metrics", env=without_driver()).get())
    assert set(old["vGPU_device_memory_usage_in_bytes"].values()) == {3174 * MIB}


def test_healthz_fails_when_updates_no_longer_end(node: Node, start: Start) -> None:
    """The reader is stopped, as by a filesystem that hangs: scrapes go on, with the sources that are left."""
    monitor = start(node.root, "--interval", "0.1", "--deadline", "0.2", env=without_driver())
    monitor.get()
    assert monitor.get("/healthz") == "ok\n"
    monitor.process.send_signal(signal.SIGSTOP)
    try:
        assert value(monitor.get(), "kai_isolator_source_up", source="regions") == 0
        assert monitor.get("/healthz") == "ok\n"
    finally:
        monitor.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 20
    while value(monitor.get(), "kai_isolator_source_up", source="regions") == 0:
        assert time.monotonic() < deadline, "the reader goes on and isn't asked"


def test_a_driver_that_is_installed_later_is_found_by_the_running_program(
    node: Node, start: Start, tmp_path: Path
) -> None:
    built = ROOT / "build" / "simgpu"
    card, driver = tmp_path / "card", tmp_path / "driver"
    driver.mkdir()
    subprocess.run([built / "simgpu", "create", "--state", card, "--card", "T4"], check=True)
    env = {**without_driver(), "LD_LIBRARY_PATH": str(driver), "SIMGPU_STATE": str(card)}
    monitor = start(node.root, env=env)
    assert value(monitor.get(), "kai_isolator_source_up", source="nvml") == 0
    shutil.copy(built / "libnvidia-ml.so.1", driver)
    page = monitor.get()
    assert value(page, "kai_isolator_source_up", source="nvml") == 1
    assert value(page, "kai_isolator_card_memory_bytes", device_index="0") == 15360 * MIB


def test_no_scrape_leaves_a_file_open_or_memory_behind(node: Node, start: Start) -> None:
    """1,000 scrapes of a node with good, bad and changing regions: open files and memory stay as they were."""
    for i in range(20):
        pod = node.pod(i, f"p{i}", ASKED)
        path = node.region(pod, [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)])})
        if i % 5 == 0:
            path.write_bytes(os.urandom(5000))
    good = path.read_bytes()
    monitor = start(node.root, "--pods-file", str(node.pods_file()), env=without_driver())
    pids = (monitor.process.pid, exporter_of(monitor))

    def resident() -> list[int]:
        return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]

    def opened() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]

    def scrape(times: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", monitor.port, timeout=30)
        for number in range(times):
            if number % 50 == 0:
                path.write_bytes(os.urandom(region.REGION_BYTES))
                path.write_bytes(good)
            connection.request("GET", "/metrics")
            assert connection.getresponse().read()
        connection.close()

    scrape(100)
    files = opened()
    before = resident()
    scrape(1000)
    deadline = time.monotonic() + 20
    while any(now > before for now, before in zip(opened(), files, strict=True)):  # a connection may be closing yet
        assert time.monotonic() < deadline, (opened(), files)
        time.sleep(0.05)
    assert all(after < first * 1.05 + 256 for after, first in zip(resident(), before, strict=True)), (
        before,
        resident(),
    )
