"""A pod gets its share and no more, however it is made; what counts is the card's truth."""

import re

import pytest

from e2e.cluster.chain import GIB, MIB, Chain, Command, Pod, eventually, quick_start, sleeper
from e2e.cluster.client import Object
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import NODE_NAME
from e2e.images.catalog import PROBE_IMAGE

CONTEXT_BYTES = 102 * MIB
REFUSAL = "Device 0 OOM 5475663872 / 4348444672"  # 3 GiB + 2 GiB + the context's 102 MiB, against 4147 MiB
TRY = ["vgpu-probe", "alloc", "3GiB", "2GiB"]


def _judge(chain: Chain, done: Command, claim: str) -> None:
    """3 GiB granted, 2 GiB more refused with code 2 and the library's line."""
    refusal = re.search(r"Device 0 OOM \d+ / \d+", done.output)
    assert "granted  3 GiB" in done.output, done.output
    assert "refused  2 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)" in done.output, done.output
    assert refusal, done.output
    assert refusal[0].endswith(f"/ {chain.limit_mib() * MIB}")
    if isinstance(chain.cluster, Cluster):  # the context's size is known
        assert refusal[0] == REFUSAL
    assert done.status == 1
    print(f"{claim}: 3 GiB granted, 2 GiB more refused, {refusal[0]!r}")


def test_quick_start_prints_what_the_readme_says(chain: Chain) -> None:
    pod = chain.start(quick_start())
    log = pod.wait_for_log("held     3 GiB").splitlines()
    # The refusal goes to stderr, and the runtime reads the two streams in an order of its own.
    lines = [line for line in log if not line.startswith("Device 0 OOM ")]
    limit = chain.limit_mib()
    assert lines[:2] == [f"limit={limit}m", "/usr/local/vgpu/libvgpu.so"]
    assert re.fullmatch(rf"GPU-[0-9a-f-]+, {limit} MiB", lines[2])
    assert "granted  3 GiB" in lines
    assert "refused  2 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)" in lines
    [refusal] = [line for line in log if line.startswith("Device 0 OOM ")]
    print(f"quick start printed: {' | '.join(lines[:3])} | {refusal}")


def test_three_lines_come_from_kubectl_exec_too(chain: Chain) -> None:
    pod = chain.start(sleeper("exec"))
    query = "nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader"
    shell = f'echo "limit=$CUDA_DEVICE_MEMORY_LIMIT"; cat /etc/ld.so.preload; {query}'
    limit = chain.limit_mib()
    done = pod.run("sh", "-c", shell)
    limit = chain.limit_mib()
    first, second, third = done.output.splitlines()
    assert [first, second] == [f"limit={limit}m", "/usr/local/vgpu/libvgpu.so"]
    assert re.fullmatch(rf"GPU-[0-9a-f-]+, {limit} MiB", third)
    print(f"kubectl exec printed: {done.output.strip().replace(chr(10), ' | ')}")


def test_second_pod_keeps_its_share(chain: Chain) -> None:
    """The first one takes all it can get, again and again; the neighbour still gets its 3 GiB."""
    greedy = "vgpu-probe alloc 3GiB 1GiB 1GiB 12GiB; exec vgpu-probe hold 3GiB 900MiB"
    first = chain.start(sleeper("greedy", command=["sh", "-c", greedy]))
    first.wait_for_log("held     3972 MiB")
    before = chain.used_bytes()
    second = chain.start(sleeper("neighbour", command=["vgpu-probe", "hold", "3GiB"]))
    second.wait_for_log("held     3 GiB")
    assert chain.used_bytes() - before == 3 * GIB + CONTEXT_BYTES
    assert before <= chain.limit_mib() * MIB
    print(f"greedy pod holds {before // MIB} MiB of its 4147, its neighbour {(chain.used_bytes() - before) // MIB} MiB")
    for pod in (first, second):
        pod.delete()
    eventually("the card is empty", lambda: chain.used_bytes() == 0)


def _as_user(pod: Object) -> None:
    pod["spec"]["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "fsGroup": 2000}


def _read_only(pod: Object) -> None:
    pod["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True}


def _without_capabilities(pod: Object) -> None:
    own = {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
    pod["spec"]["containers"][0]["securityContext"] = own


def _seccomp(pod: Object) -> None:
    pod["spec"]["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}


def _all_of_it(pod: Object) -> None:
    for change in (_as_user, _without_capabilities):
        change(pod)
    pod["spec"]["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = True


def _no_token(pod: Object) -> None:
    pod["spec"]["automountServiceAccountToken"] = False


VARIANTS = {
    "uid 1000": _as_user,
    "read-only root": _read_only,
    "no capabilities": _without_capabilities,
    "RuntimeDefault seccomp": _seccomp,
    "all of these": _all_of_it,
    "no other volume": _no_token,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_share_holds_in_a_pod_of_any_shape(chain: Chain, variant: str) -> None:
    pod = chain.start(sleeper(variant.lower().replace(" ", "-"), VARIANTS[variant]))
    _judge(chain, pod.run(*TRY), variant)


def test_share_holds_with_an_empty_environment(chain: Chain) -> None:
    pod = chain.start(sleeper("env-i"))
    _judge(chain, pod.run("env", "-i", "/usr/local/bin/vgpu-probe", *TRY[1:]), "kubectl exec env -i")


def test_share_holds_in_an_init_container(chain: Chain) -> None:
    def change(pod: Object) -> None:
        pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "first"
        shell = f"{' '.join(TRY)}; echo status $?"
        pod["spec"]["initContainers"] = [{"name": "first", "image": PROBE_IMAGE, "command": ["sh", "-c", shell]}]

    pod = chain.start(sleeper("init", change))
    output = pod.log("first")
    assert "status 1" in output
    _judge(chain, Command(1, output), "init container")
    assert "libvgpu" not in pod.run("cat", "/etc/ld.so.preload").output


def test_share_holds_in_a_sidecar(chain: Chain) -> None:
    def change(pod: Object) -> None:
        pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "side"
        side = {"name": "side", "image": PROBE_IMAGE, "restartPolicy": "Always", "command": ["sleep", "1000"]}
        pod["spec"]["initContainers"] = [side]

    pod = chain.start(sleeper("sidecar", change))
    _judge(chain, pod.run(*TRY, container="side"), "sidecar")


def test_share_holds_in_the_named_one_of_two_containers(chain: Chain) -> None:
    def change(pod: Object) -> None:
        pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "second"
        pod["spec"]["containers"].append({"name": "second", "image": PROBE_IMAGE, "command": ["sleep", "1000"]})

    pod = chain.start(sleeper("two", change))
    _judge(chain, pod.run(*TRY, container="second"), "second of two containers")
    other = pod.run("vgpu-probe", "info", container="main")
    assert other.status == 3, other.output  # no card was given to it


def _restarts(pod: Pod) -> int:
    return int(pod.get()["status"]["containerStatuses"][0]["restartCount"])


def test_share_holds_after_the_container_was_killed_and_restarted(chain: Chain) -> None:
    """The ledger outlives the container with a dead process in it, whose bytes must be free again."""

    def change(pod: Object) -> None:
        pod["spec"]["restartPolicy"] = "Always"

    pod = chain.start(sleeper("restart", change, ["vgpu-probe", "hold", "3GiB"]))
    pod.wait_for_log("held     3 GiB")
    [process] = chain.cards()[0]["processes"]
    chain.own.run(["kill", "-KILL", str(process["pid"])])
    chain.cluster.wait("the container runs again", lambda: _restarts(pod) == 1, 60)
    pod.wait_for_log("held     3 GiB")
    assert chain.used_bytes() == 3 * GIB + CONTEXT_BYTES
    done = pod.run("vgpu-probe", "alloc", "1GiB")
    assert "refused  1 GiB" in done.output
    print("after SIGKILL and restart: 3 GiB granted again, 1 GiB more refused")


def test_killed_process_leaves_no_bytes_behind(chain: Chain) -> None:
    pod = chain.start(sleeper("kill"))
    wait = "for i in $(seq 200); do grep -q held /tmp/held && break; sleep 0.1; done"
    shell = f"vgpu-probe hold 3GiB >/tmp/held & {wait}; kill -9 $!; {' '.join(TRY)}"
    _judge(chain, pod.run("sh", "-c", shell), "after kill -9")


def test_fraction_of_a_card_is_enforced(chain: Chain) -> None:
    def change(pod: Object) -> None:
        pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}

    pod = chain.start(sleeper("half", change))
    half = chain.card_mib() // 2
    assert f"{half} MiB" in pod.run("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader").output
    done = pod.run("vgpu-probe", "verify")
    assert done.status == 0, done.output
    print("gpu-fraction 0.5: " + next(line for line in done.output.splitlines() if line.startswith("verdict")))


def test_share_is_enforced_where_kai_writes_no_limit(chain: Chain) -> None:
    """Without the node's label KAI binds a pod with no limit: the annotation itself decides then."""
    node = f"/api/v1/nodes/{NODE_NAME}"
    chain.patch(node, {"metadata": {"labels": {"nvidia.com/gpu.memory": None}}})
    try:
        pod = chain.start(sleeper("no-label"))
        done = pod.run("vgpu-probe", "info")
        assert "4096 MiB" in done.output, done.output
        assert pod.run("vgpu-probe", "alloc", "5GiB").status == 1
        print("node without the label: 4096 MiB from the annotation are enforced")
    finally:
        chain.patch(node, {"metadata": {"labels": {"nvidia.com/gpu.memory": "15360"}}})
