"""simgpu fault, neighbour and serve: what tests do to a living card."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import BUILD, Card
from tests.probe.conftest import GIB, MIB, Probe

SIMGPU = BUILD / "simgpu" / "simgpu"
OTHER_NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


def simgpu(card: Card, command: str, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [SIMGPU, command, "--state", card.state, *arguments], check=False, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def bare(card: Card, tmp_path: Path) -> Probe:
    return Probe(card, tmp_path)


def test_chosen_call_fails_with_the_chosen_code(card: Card, bare: Probe) -> None:
    """Counted from the order on, over all processes; before and after it the call goes well."""
    simgpu(card, "fault", "cuMemAlloc_v2", "2-3", "719")
    document = bare.json("alloc", "1m", "--count", "5", code=1)
    assert [request["code"] for request in document["requests"]] == [0, 719, 719, 0, 0]


def test_fault_may_last_for_ever_until_it_is_cleared(card: Card, bare: Probe) -> None:
    simgpu(card, "fault", "cuMemAlloc_v2", "1-", "999")
    assert bare.json("alloc", "1m", "--count", "3", code=1)["refused"] == 3
    assert simgpu(card, "fault", "--list").startswith("cuMemAlloc_v2 1-")
    simgpu(card, "fault", "--clear")
    assert simgpu(card, "fault", "--list") == ""
    assert bare.json("alloc", "1m")["refused"] == 0


def test_symbol_may_be_missing(card: Card) -> None:
    """As with an older driver: the look-up finds nothing, and says so by its status."""
    simgpu(card, "fault", "cuMemAllocAsync", "1-", "missing")
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
found, status = ctypes.c_void_p(), ctypes.c_int()
code = cuda.cuGetProcAddress_v2(
    b"cuMemAllocAsync", ctypes.byref(found), 12000, ctypes.c_uint64(0), ctypes.byref(status)
)
print(code, found.value, status.value)
"""
    done = subprocess.run([sys.executable, "-c", program], env=card.env, capture_output=True, text=True, check=True)
    assert done.stdout == "0 None 1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["fault", "cuInit"],
        ["fault", "cuInit", "0", "2"],
        ["fault", "cuInit", "3-1", "2"],
        ["fault", "cuInit", "1", "soon"],
        ["fault", "--list", "cuInit"],
        ["neighbour"],
        ["neighbour", "much"],
        ["neighbour", "--every", "0", "1g"],
        ["serve", "me"],
    ],
)
def test_wrong_command_line_is_refused(card: Card, arguments: list[str]) -> None:
    simgpu(card, *arguments, code=2)


def test_neighbour_takes_what_it_says_and_gives_it_back(card: Card) -> None:
    command: list[str | Path] = [SIMGPU, "neighbour", "--state", card.state, "3GiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == f"neighbour holds {3 * GIB} bytes of card 0\n"
        (process,) = card.truth()[0]["processes"]
        assert process["pid"] == neighbour.pid
        assert process["data_bytes"] == 3 * GIB
        assert process["context_bytes"] == 102 * MIB
        neighbour.terminate()
    assert neighbour.returncode == 0
    assert card.truth()[0]["used_bytes"] == 0


def test_neighbour_that_does_not_fit_says_so(card: Card) -> None:
    simgpu(card, "neighbour", "16g", code=1)
    assert card.truth()[0]["used_bytes"] == 0


def test_restless_neighbour_takes_and_frees(card: Card) -> None:
    """Both states are seen; the context stays."""
    command: list[str | Path] = [SIMGPU, "neighbour", "--state", card.state, "--every", "5", "3g"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        seen: set[int] = set()
        deadline = time.monotonic() + 30
        while len(seen) < 2 and time.monotonic() < deadline:
            seen.add(card.truth()[0]["used_bytes"])
        neighbour.terminate()
    assert seen == {102 * MIB, 102 * MIB + 3 * GIB}


def test_host_serves_pids_to_viewers_in_containers(card: Card) -> None:
    """A viewer in one container lists a process of another one by the host's number, once the host has looked."""
    holder_command: list[str | Path] = [*OTHER_NAMESPACE, SIMGPU, "neighbour", "--state", card.state, "1g"]
    server_command: list[str | Path] = [SIMGPU, "serve", "--state", card.state]
    with (
        subprocess.Popen(holder_command, stdout=subprocess.PIPE, text=True) as holder,
        subprocess.Popen(server_command, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert holder.stdout is not None
        assert server.stdout is not None
        holder.stdout.readline()
        server.stdout.readline()  # it has looked once before it says so
        program = (
            "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
            "print([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)])"
        )
        viewer = subprocess.run(
            [*OTHER_NAMESPACE, sys.executable, "-c", program], env=card.env, capture_output=True, text=True, check=True
        )
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        server.terminate()
        holder.kill()
    assert viewer.stdout == f"[{children[0]}]\n"
    assert server.returncode == 0
