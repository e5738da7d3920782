"""The runner starts containers as a runtime does, in a world of their own, and leaves nothing of it behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.onebox.environment import ContainerConfigError
from e2e.onebox.node import ROOT, ContainerError, Node
from tests.onebox.conftest import MakePod

# A pod that holds a mount, killed with its runner in the middle of it.
SCRIPT = """
import sys, time
from pathlib import Path
from e2e.onebox.node import Node
from e2e.onebox.pod import Pod
manifest = {"metadata": {"name": "a", "uid": "a"}, "spec": {
    "volumes": [{"name": "it", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
    "containers": [{"name": "main", "command": ["sleep", "4711"],
        "volumeMounts": [{"name": "it", "mountPath": "/it"}]}]}}
with Node(keep_in=Path(sys.argv[1])) as node, Pod(node, manifest, {}) as pod:
    pod.start()
    print(pod["main"].exec("id", "-u").output.strip(), pod["main"].pid, flush=True)
    if len(sys.argv) > 2:
        time.sleep(60)
"""


def test_a_command_that_isnt_there_is_told(make_pod: MakePod) -> None:
    with pytest.raises(ContainerError, match="No such file or directory"):
        make_pod(main={"command": ["/no/such/program"]}).start()


def test_a_container_is_alone_in_its_pid_namespace(make_pod: MakePod) -> None:
    pod = make_pod().start()
    pids = pod["main"].exec("sh", "-c", "cd /proc && echo [0-9]*").output.split()
    assert pids[0] == "1"
    assert len(pids) == 2
    assert pod["main"].exec("cat", "/proc/1/comm").output == "sleep\n"


def test_the_hosts_etc_is_never_touched(make_pod: MakePod, tmp_path: Path) -> None:
    preload = tmp_path / "ld.so.preload"
    preload.write_text("")

    def state() -> list[str]:
        return sorted(path.name for path in Path("/etc").iterdir())

    before = state()
    pod = make_pod(
        volumes=[{"name": "it", "hostPath": {"path": str(preload), "type": "File"}}],
        main={"volumeMounts": [{"name": "it", "mountPath": "/etc/ld.so.preload", "readOnly": True}]},
    ).start()
    assert pod["main"].exec("touch", "/etc/made-inside").status == 0
    assert pod["main"].exec("ls", "/etc/ld.so.preload").status == 0
    assert state() == before


def test_the_hosts_programs_are_read_only(make_pod: MakePod) -> None:
    pod = make_pod().start()
    assert "Read-only file system" in pod["main"].exec("touch", "/usr/bin/made-inside").errors


def test_root_in_a_container_cant_take_a_mount_away(make_pod: MakePod) -> None:
    pod = make_pod(
        volumes=[{"name": "it", "emptyDir": {}}], main={"volumeMounts": [{"name": "it", "mountPath": "/it"}]}
    ).start()
    assert pod["main"].exec("umount", "/it").status != 0


def test_a_read_only_root_is_one(make_pod: MakePod) -> None:
    pod = make_pod(main={"securityContext": {"readOnlyRootFilesystem": True}}).start()
    assert "Read-only file system" in pod["main"].exec("touch", "/file").errors


def test_run_as_user_holds_for_the_command_and_for_exec(make_pod: MakePod) -> None:
    pod = make_pod(
        main={
            "command": ["sh", "-c", "id -u; id -G; grep CapEff /proc/self/status; exec sleep infinity"],
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
        },
        securityContext={"fsGroup": 2000, "runAsUser": 7},
    ).start()
    groups = ["2000"] if os.geteuid() == 0 else []  # a user has no second group to give
    assert pod["main"].wait_for_log("CapEff").split() == ["1000", "1000", *groups, "CapEff:", "0" * 16]
    assert pod["main"].exec("id", "-u").output == "1000\n"


def test_environment_in_kubelets_order(make_pod: MakePod) -> None:
    pod = make_pod(
        {"from": {"A": "from", "B": "from"}, "key": {"K": "4147m"}},
        {"gpu-memory": "4096"},
        main={
            "envFrom": [{"configMapRef": {"name": "from"}}, {"configMapRef": {"name": "none", "optional": True}}],
            "env": [
                {"name": "B", "value": "env"},
                {"name": "C", "value": "$(B)-$(LATER)-$$(B)"},
                {"name": "LATER", "value": "x"},
                {"name": "LIMIT", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "K"}}},
                {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "N", "optional": True}}},
                {"name": "MEMORY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpu-memory']"}}},
                {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            ],
        },
    ).start()
    given = dict(line.split("=", 1) for line in pod["main"].exec("env").output.splitlines())
    assert {key: given.get(key) for key in ("A", "B", "C", "LIMIT", "ABSENT", "MEMORY", "POD_UID")} == {
        "A": "from",
        "B": "env",
        "C": "env-$(LATER)-$(B)",
        "LIMIT": "4147m",
        "ABSENT": None,
        "MEMORY": "4096",
        "POD_UID": pod.uid,
    }
    assert pod["main"].exec("/usr/bin/env", env={}).output == ""


@pytest.mark.parametrize(
    "entry",
    [
        {"envFrom": [{"configMapRef": {"name": "absent"}}]},
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "K"}}}]},
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "there", "key": "absent"}}}]},
    ],
)
def test_a_required_reference_that_is_missing_is_a_config_error(entry: dict[str, object], make_pod: MakePod) -> None:
    with pytest.raises(ContainerConfigError, match="absent"):
        make_pod({"there": {}}, main=entry).start()


def test_init_containers_run_in_order_before_the_others(make_pod: MakePod) -> None:
    def step(name: str) -> dict[str, object]:
        return {
            "name": name,
            "command": ["sh", "-c", f"echo {name} >>/it/log"],
            "volumeMounts": [{"name": "it", "mountPath": "/it"}],
        }

    pod = make_pod(
        volumes=[{"name": "it", "emptyDir": {}}],
        initContainers=[step("one"), step("two")],
        main={"volumeMounts": [{"name": "it", "mountPath": "/it"}]},
    ).start()
    assert pod["main"].exec("cat", "/it/log").output == "one\ntwo\n"


def test_a_failed_init_container_keeps_the_others_from_starting(make_pod: MakePod) -> None:
    pod = make_pod(initContainers=[{"name": "one", "command": ["sh", "-c", "echo why; exit 3"]}])
    with pytest.raises(ContainerError, match="one ended with 3:\nwhy"):
        pod.start()
    assert not pod["main"].is_running()


def test_exit_status_and_signals_are_told(make_pod: MakePod) -> None:
    assert make_pod(main={"command": ["sh", "-c", "exit 7"]}).start()["main"].wait() == 7
    pod = make_pod().start()
    pod["main"].kill(signal.SIGKILL)
    assert pod["main"].wait() == 128 + signal.SIGKILL


def test_the_driver_is_found_with_an_empty_environment(make_pod: MakePod) -> None:
    pod = make_pod().start()
    known = pod["main"].exec("/sbin/ldconfig", "-p", env={}).output
    assert "libcuda.so.1" in known
    assert "libnvidia-ml.so.1" in known


def test_visible_devices_void_hides_the_driver(make_pod: MakePod) -> None:
    pod = make_pod(main={"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}).start()
    assert pod["main"].exec("ls", "/usr/local/nvidia/lib64").status != 0


def run_script(*prefix: str, directory: Path, stay: bool = False) -> "subprocess.Popen[str]":
    command = [*prefix, sys.executable, "-c", SCRIPT, str(directory), *(["stay"] if stay else [])]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_runner_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with run_script(directory=tmp_path, stay=True) as runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline().split()[1])
        assert Path(f"/proc/{pid}").exists()
        runner.send_signal(number)
        runner.wait()
    end = time.monotonic() + 20
    while (list(tmp_path.iterdir()) or Path(f"/proc/{pid}/exe").exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}/exe").exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("prefix", [(), ("unshare", "--user", "--map-user=1000", "--map-group=1000")])
def test_it_works_for_root_and_for_a_user(prefix: tuple[str, ...], tmp_path: Path) -> None:
    with run_script(*prefix, directory=tmp_path) as runner:
        output, _ = runner.communicate(timeout=60)
        assert runner.returncode == 0
    assert output.split()[0] == "0"
    assert list(tmp_path.iterdir()) == []


def test_the_cards_truth_is_asked_of_the_simulator(node: Node) -> None:
    card = node.truth()[0]
    assert (card["name"], card["total_bytes"]) == ("Tesla T4", 15360 << 20)
