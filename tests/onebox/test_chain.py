"""The whole chain, pod by pod: whatever a process does in ordinary ways, its share holds, and so does the neighbour's.

What was granted is the program's word; what is held is the simulated card's.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.onebox.admission import DeniedError
from e2e.onebox.chain import Chain
from e2e.onebox.node import BUILD
from e2e.onebox.pod import Container, Pod
from e2e.onebox.volumes import FailedMountError
from tests.onebox.conftest import MakePod

MIB, GIB = 1 << 20, 1 << 30
CONTEXT_BYTES = 102 * MIB
LIMIT_MIB = 4147
PROBE = "/usr/local/bin/vgpu-probe"


def granted(container: Container, *sizes: str, env: Mapping[str, str] | None = None) -> list[bool]:
    """Have one process of the container ask for each size in turn; what it was given (and gave back at its end)."""
    done = container.exec(PROBE, "alloc", "--json", *sizes, env=env)
    requests = json.loads(done.output)["requests"]
    assert all(request["code"] == 2 for request in requests if not request["granted"]), (
        "refused, but not as out of memory"
    )
    return [request["granted"] for request in requests]


def shown_mib(container: Container) -> int:
    """Size of the card in MiB, as NVML shows it in the container."""
    return int(container.exec("nvidia-smi").output.split(", ")[1].split()[0])


def hold(chain: Chain, pod: Pod, size: str, held_bytes: int) -> "subprocess.Popen[bytes]":
    """Have a process of the pod hold memory until it is killed; returns when the card shows it."""
    process = pod["main"].exec_start(PROBE, "hold", size)
    wait_for_bytes(chain, pod, held_bytes)
    return process


def wait_for_bytes(chain: Chain, pod: Pod, held_bytes: int) -> None:
    """Wait until the card shows so many bytes for the pod; the limit only ends a test that failed."""
    end = time.monotonic() + 30
    while (now := chain.held_bytes(pod)) != held_bytes:
        assert time.monotonic() < end, f"the card holds {now} bytes, not {held_bytes}"
        time.sleep(0.02)


def kill_holders(chain: Chain, pod: Pod) -> None:
    """SIGKILL for every process of the pod that holds memory of the card."""
    for process in chain.processes(pod):
        os.kill(process["pid"], signal.SIGKILL)


def test_the_share_is_kept_to_the_last_block(run_share: MakePod) -> None:
    """The probe takes the quota in steps, one step more is refused and nothing lost, then all is given back."""
    verdict = run_share()["main"].exec(PROBE, "verify", "--expect", f"{LIMIT_MIB}m")
    assert verdict.status == 0, verdict.output + verdict.errors


def test_the_container_sees_a_card_of_its_share(run_share: MakePod) -> None:
    assert shown_mib(run_share()["main"]) == LIMIT_MIB


def test_a_refusal_says_what_was_asked_and_what_holds(run_share: MakePod) -> None:
    done = run_share()["main"].exec(PROBE, "alloc", "3GiB", "2GiB")
    assert f"Device 0 OOM {5 * GIB + CONTEXT_BYTES} / {LIMIT_MIB * MIB}" in done.errors.splitlines()


def test_all_processes_of_a_container_share_one_quota(chain: Chain, run_share: MakePod) -> None:
    pod = run_share()
    hold(chain, pod, "3GiB", 3 * GIB + CONTEXT_BYTES)
    assert granted(pod["main"], "512MiB", "1GiB") == [True, False]


def test_processes_of_two_uids_share_one_quota(run_share: MakePod) -> None:
    """Whichever comes first makes the ledger; the other one can use it all the same."""
    other = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    if os.geteuid() != 0:  # a user has but one id to give, which then goes by two names
        other = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    for first, second in (((), other), (other, ())):
        pod = run_share()
        holder = pod["main"].exec_start(*first, PROBE, "hold", "3GiB")
        assert holder.stdout is not None
        while b"held" not in (said := holder.stdout.readline()):
            assert said, "the holder ended"
        done = pod["main"].exec(*second, PROBE, "alloc", "--json", "512MiB", "1GiB")
        assert [request["granted"] for request in json.loads(done.output)["requests"]] == [True, False]


def test_the_second_pod_keeps_its_share(chain: Chain, run_share: MakePod) -> None:
    first, second = run_share(), run_share()
    hold(chain, first, "3900MiB", 3900 * MIB + CONTEXT_BYTES)
    assert granted(first["main"], "1GiB") == [False]
    hold(chain, second, "3900MiB", 3900 * MIB + CONTEXT_BYTES)
    assert chain.held_bytes(first) == chain.held_bytes(second)


def test_it_holds_for_any_uid_and_a_read_only_root(run_share: MakePod) -> None:
    context = {"runAsUser": 1000, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    pod = run_share(main={"securityContext": context})
    assert pod["main"].exec("id", "-u").output == "1000\n"
    assert granted(pod["main"], "3GiB", "2GiB") == [True, False]


def test_an_init_container_can_have_the_share(run_share: MakePod) -> None:
    """The pod starts only if the init container found its share kept."""
    run_share(
        {"gpu-memory": "4096", "gpu-fraction-container-name": "load"},
        initContainers=[
            {"name": "load", "image": "probe", "command": [PROBE, "verify", "--expect", f"{LIMIT_MIB}m"]},
        ],
    )


def test_of_two_containers_the_named_one_has_the_share(run_share: MakePod) -> None:
    pod = run_share(
        {"gpu-memory": "4096", "gpu-fraction-container-name": "work"},
        containers=[
            {"name": "main", "image": "probe", "command": ["sleep", "infinity"]},
            {"name": "work", "image": "probe", "command": ["sleep", "infinity"]},
        ],
    )
    assert granted(pod["work"], "3GiB", "2GiB") == [True, False]
    assert pod["main"].exec("cat", "/etc/ld.so.preload").status != 0


def test_a_restart_keeps_the_ledger_and_frees_what_the_dead_held(chain: Chain, run_share: MakePod) -> None:
    pod = run_share()
    hold(chain, pod, "3GiB", 3 * GIB + CONTEXT_BYTES)
    before = pod.region("main").stat().st_ino
    pod["main"].restart()
    assert pod.region("main").stat().st_ino == before
    assert granted(pod["main"], "4000MiB") == [True]
    assert pod.region("main").stat().st_ino == before


def test_kill_9_gives_all_memory_back_at_once(chain: Chain, run_share: MakePod) -> None:
    pod = run_share()
    process = hold(chain, pod, "3900MiB", 3900 * MIB + CONTEXT_BYTES)
    assert granted(pod["main"], "1GiB") == [False]
    kill_holders(chain, pod)
    process.wait()
    assert granted(pod["main"], "4000MiB") == [True]
    assert chain.held_bytes(pod) == 0


def test_an_emptied_environment_changes_nothing(run_share: MakePod) -> None:
    pod = run_share()
    assert granted(pod["main"], "3GiB", "2GiB", env={}) == [True, False]


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"])
@pytest.mark.parametrize("value", ["15g", "0", "", "-1"])
def test_a_forged_variable_never_raises_the_limit(name: str, value: str, run_share: MakePod) -> None:
    """A variable that makes no sense may also end in a refusal to start: never in more memory."""
    pod = run_share()
    done = pod["main"].exec(PROBE, "alloc", "--json", "5GiB", env={name: value})
    assert done.status != 0
    assert '"granted": true' not in done.output


def test_a_variable_can_lower_the_limit(run_share: MakePod) -> None:
    pod = run_share()
    assert granted(pod["main"], "1GiB", "2GiB", env={"CUDA_DEVICE_MEMORY_LIMIT": "2g"}) == [True, False]


def test_another_place_for_the_ledger_is_not_taken(chain: Chain, run_share: MakePod) -> None:
    """The variable that moves the ledger by hand would give each process a quota of its own."""
    pod = run_share()
    hold(chain, pod, "3GiB", 3 * GIB + CONTEXT_BYTES)
    assert granted(pod["main"], "2GiB", env={"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine"}) == [False]


def test_the_quota_of_a_pod_cant_be_written_in_it(run_share: MakePod) -> None:
    pod = run_share()
    for path in ("/etc/vgpu/limit", "/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so"):
        done = pod["main"].exec("sh", "-c", f"echo 15g >{path}")
        assert "Read-only file system" in done.errors
        assert pod["main"].exec("rm", "-f", path).status != 0


def test_a_node_that_isnt_ready_keeps_the_pod_waiting(chain: Chain, run_share: MakePod) -> None:
    """It waits instead of running without a limit, and starts once libsync has done its work."""
    directory = chain.node.library_base / "abi-1"
    away = directory.rename(directory.with_name("away"))
    try:
        pod = run_share(start=False)
        with pytest.raises(FailedMountError, match="hostPath type check failed"):
            pod.start()
        assert not pod["main"].is_running()
    finally:
        away.rename(directory)
    assert granted(pod.start()["main"], "3GiB", "2GiB") == [True, False]


@pytest.mark.parametrize(
    ("annotations", "label_mib", "limit_mib"),
    [
        ({"gpu-memory": "4096"}, None, 4096),
        ({"gpu-fraction": "0.5"}, None, 7680),
        ({"gpu-fraction": "0.004"}, 15360, 61),
        ({"gpu-fraction": "0.27"}, 15360 << 20, 4147),
        ({"gpu-memory": "4096"}, 15360 << 20, 4096),
        ({"gpu-fraction": "0.333"}, 15360, 5068),
        ({"gpu-memory": "15300"}, 15360, 15360),
    ],
    ids=[
        "no label",
        "no label, fraction",
        "share of 0.00",
        "label in bytes",
        "label in bytes, memory",
        "rounded",
        "whole",
    ],
)
def test_where_kais_sum_fails_the_annotation_caps(
    annotations: dict[str, str], label_mib: int | None, limit_mib: int, run_share: MakePod
) -> None:
    """KAI binds pods without a limit, or with an absurd one: they are capped by what they asked for."""
    pod = run_share(annotations, label_mib=label_mib)
    assert shown_mib(pod["main"]) == limit_mib
    assert granted_or_none(pod["main"], f"{limit_mib + 1}MiB") is False


def granted_or_none(container: Container, size: str) -> bool | None:
    """As granted(), for a share in which not even a context has room: nothing is asked then."""
    done = container.exec(PROBE, "alloc", "--json", size)
    answers = json.loads(done.output).get("requests", [{"granted": False}])
    return bool(answers[0]["granted"])


def test_an_upgrade_leaves_old_holder_and_new_process_one_quota(
    chain: Chain, run_share: MakePod, tmp_path: Path
) -> None:
    """The new library is the same code under another hash: the directory shows the renamed file at once."""
    pod = run_share()
    hold(chain, pod, "3GiB", 3 * GIB + CONTEXT_BYTES)
    old = pod["main"].exec("sha256sum", "/usr/local/vgpu/libvgpu.so").output
    (tmp_path / "libvgpu.so").write_bytes((BUILD / "libvgpu.so").read_bytes() + b"\0")
    try:
        chain.library = tmp_path
        chain.prepare_node()
        assert pod["main"].exec("sha256sum", "/usr/local/vgpu/libvgpu.so").output != old
        assert granted(pod["main"], "512MiB", "1GiB") == [True, False]
        assert chain.held_bytes(pod) == 3 * GIB + CONTEXT_BYTES
    finally:
        chain.library = BUILD
        chain.prepare_node()


def test_a_mistake_is_denied_with_a_sentence(run_share: MakePod) -> None:
    with pytest.raises(DeniedError, match="gpu-memory"):
        run_share({"gpu-memory": "4Gi"})


def test_a_pod_without_a_share_is_left_alone(chain: Chain, run_share: MakePod) -> None:
    pod = run_share({})
    assert "volumes" not in pod.spec
    assert pod["main"].exec("cat", "/etc/ld.so.preload").status != 0
