"""The simulated NVML answers as the vendor's does, from the cards' shared state."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.conftest import BUILD, Card
from tests.probe.conftest import GIB, MIB, Probe

NVML = BUILD / "simgpu" / "libnvidia-ml.so.1"
SIMGPU = BUILD / "simgpu" / "simgpu"
CONTEXT = 102 * MIB


PREAMBLE = """
import ctypes, json, os
import pynvml as n

def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
"""


def python(card: Card, program: str, **env: str) -> Any:
    """Run a program that leaves what it found in `answer`, and return that."""
    text = f"{textwrap.dedent(program)}\nimport json\nprint(json.dumps(answer))\n"
    done = subprocess.run([sys.executable, "-c", text], env=card.env | env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def ask(card: Card, program: str, **env: str) -> Any:
    """The same after an init: `n` is pynvml, `h` the first device, `code(f, ...)` the code that f ends with."""
    return python(card, PREAMBLE + textwrap.dedent(program), **env)


@contextmanager
def neighbour(card: Card, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds memory of the card while the body runs."""
    command: list[str | Path] = [SIMGPU, "neighbour", "--state", card.state, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("neighbour holds ")
        yield process
        process.terminate()


def test_exports_all_that_a_535_driver_does(exported_by_535: set[str]) -> None:
    """A program that links against NVML or looks a name up finds it; what the card hasn't is answered honestly."""
    with NVML.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        exported = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"}
    assert exported_by_535 - exported == set()
    assert {name for name in exported if not name.startswith("nvml")} == set()


def test_functions_without_a_simulation_say_not_supported(card: Card) -> None:
    assert ask(card, "answer = [code(n.nvmlDeviceGetFanSpeed, h), code(n.nvmlDeviceGetRetiredPages, h, 0)]") == [3, 3]


def test_nothing_is_answered_before_init(card: Card) -> None:
    program = """
    import ctypes
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    answer = [nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlShutdown()]
    """
    assert python(card, program) == [1, 1]


def test_init_is_counted(card: Card) -> None:
    """The second shutdown ends it, a third one is refused; handles stay good over a new init."""
    program = """
    n.nvmlInit()
    n.nvmlShutdown()
    answer = [n.nvmlDeviceGetCount()]
    n.nvmlShutdown()
    answer.append(code(n.nvmlShutdown))
    n.nvmlInit()
    answer.append(n.nvmlDeviceGetName(h))
    """
    assert ask(card, program) == [1, 1, "Tesla T4"]


MEMORY = """
first, second = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
answer = [[m.total, m.used, m.free] for m in (first, second)]
"""


def test_memory_is_the_card_s_truth_in_both_versions(card: Card) -> None:
    with neighbour(card, "1g"):
        assert ask(card, MEMORY) == [[15360 * MIB, GIB + CONTEXT, 15360 * MIB - GIB - CONTEXT]] * 2


def test_killed_holder_is_gone_at_once(card: Card) -> None:
    with neighbour(card, "1g") as holder:
        holder.kill()
    program = "answer = [n.nvmlDeviceGetMemoryInfo(h).used, len(n.nvmlDeviceGetComputeRunningProcesses(h))]"
    assert ask(card, program) == [0, 0]


def test_reserved_memory_is_told_apart_in_the_second_version_only(make_card: Callable[..., Card]) -> None:
    card = make_card("Tesla T4:15360:102:450")
    assert ask(card, MEMORY) == [[15360 * MIB, 450 * MIB, 14910 * MIB], [15360 * MIB, 0, 14910 * MIB]]
    assert ask(card, "answer = n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).reserved") == 450 * MIB


def test_struct_of_another_version_is_refused(card: Card) -> None:
    assert ask(card, "answer = code(n.nvmlDeviceGetMemoryInfo, h, 0x1000001)") == 25


def test_card_with_unified_memory_cannot_tell_it(make_card: Callable[..., Card]) -> None:
    assert ask(make_card("GB10"), "answer = code(n.nvmlDeviceGetMemoryInfo, h)") == 3


def test_processes_are_listed_in_all_three_versions(card: Card) -> None:
    """Pid, and all that it holds; the versions differ in their entries' size only (16, 24 and 24 bytes)."""
    program = """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    answer = []
    for name, words in (("", 2), ("_v2", 3), ("_v3", 3)):
        count, entries = ctypes.c_uint(4), (ctypes.c_ulonglong * (4 * words))()
        done = nvml["nvmlDeviceGetComputeRunningProcesses" + name](h, ctypes.byref(count), entries)
        answer.append([done, count.value, *[[entries[i * words] & 0xFFFFFFFF, entries[i * words + 1]] for i in (0, 1)]])
    """
    with neighbour(card, "1g") as one, neighbour(card, "2g") as other:
        entries = [[one.pid, GIB + CONTEXT], [other.pid, 2 * GIB + CONTEXT]]
        assert ask(card, program) == [[0, 2, *entries]] * 3


def test_list_that_is_too_short_tells_the_length(card: Card) -> None:
    """The usual first question, with no room at all, and one with too little."""
    program = """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    answer = []
    for room in (0, 1):
        count, entries = ctypes.c_uint(room), (ctypes.c_ulonglong * 3)()
        answer.append([nvml.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(count), entries), count.value])
    """
    with neighbour(card, "1g"), neighbour(card, "1g"):
        assert ask(card, program) == [[7, 2]] * 2


def test_process_of_another_pid_namespace_is_listed_by_the_host_s_number(card: Card) -> None:
    """As a container's process: it is 1 to itself, and something else to the host, where the exporter runs."""
    inside: list[str | Path] = [SIMGPU, "neighbour", "--state", card.state, "1g"]
    command: list[str | Path] = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", *inside]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        outer.stdout.readline()
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        pids = ask(card, "answer = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]")
        outer.kill()
    assert pids == [int(children[0])]


def test_cuda_visible_devices_is_not_nvml_s_business(make_card: Callable[..., Card]) -> None:
    card = make_card("T4", "A100")
    names = "answer = [n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]"
    assert ask(card, names, CUDA_VISIBLE_DEVICES="1") == ["Tesla T4", "NVIDIA A100-SXM4-80GB"]


def test_device_is_found_by_each_of_its_names(make_card: Callable[..., Card]) -> None:
    card = make_card("T4", "T4")
    program = """
    second = n.nvmlDeviceGetHandleByIndex(1)
    found = [
        n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(second)),
        n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(second).busId),
        n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(second)),
    ]
    answer = [n.nvmlDeviceGetIndex(device) for device in found]
    """
    assert ask(card, program) == [1, 1, 1]
    assert ask(card, "answer = code(n.nvmlDeviceGetHandleByUUID, 'GPU-00000000-0000-0000-0000-000000000000')") == 6
    assert ask(card, "answer = code(n.nvmlDeviceGetHandleByIndex, 2)") == 2


def test_mig_device_has_a_parent(make_card: Callable[..., Card]) -> None:
    """NVML counts the parent; its MIG device has its own uuid and memory. A T4 has no MIG at all."""
    card = make_card("MIG-1g.10gb")
    program = """
    device = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
    uuid = n.nvmlDeviceGetUUID(device)
    answer = {
        "mode": n.nvmlDeviceGetMigMode(h),
        "parent": n.nvmlDeviceGetUUID(h)[:4],
        "uuid": uuid,
        "total": n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByUUID(uuid)).total,
    }
    """
    uuid = card.truth()[0]["uuid"]
    assert ask(card, program) == {"mode": [1, 1], "parent": "GPU-", "uuid": uuid, "total": 9984 * MIB}
    assert ask(make_card("T4"), "answer = code(n.nvmlDeviceGetMigMode, h)") == 3


def test_not_ready_for_a_while(card: Card) -> None:
    """As at a node's start: the first three inits fail, the fourth one goes well."""
    subprocess.run([SIMGPU, "fault", "--state", card.state, "nvmlInit_v2", "1-3", "9"], check=True)
    program = """
    import ctypes
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    answer = [nvml.nvmlInit_v2() for _ in range(5)]
    """
    assert python(card, program) == [9, 9, 9, 0, 0]


def test_forked_child_may_go_on_asking(card: Card) -> None:
    """Exporters fork: the child's answers are as good as the parent's."""
    program = """
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, bytes([n.nvmlDeviceGetCount()]))
        os._exit(0)
    answer = os.read(read, 1)[0]
    os.wait()
    """
    assert ask(card, program) == 1


def test_launches_show_as_utilisation(tmp_path: Path) -> None:
    """Of the card and of the process that makes them: kernels of 4 ms, one every 10 ms or so."""
    card = Card(tmp_path / "state")
    subprocess.run([SIMGPU, "create", "--state", card.state, "--kernel-us", "4000"], check=True)
    program = """
    answer = [n.nvmlDeviceGetUtilizationRates(h).gpu, []]
    if code(n.nvmlDeviceGetProcessUtilization, h, 0) == 0:
        answer[1] = [[p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessUtilization(h, 0)]
    """
    with Probe(card, tmp_path).holding("1MiB", "--busy") as holder:
        time.sleep(1.2)  # utilisation is told over the last second
        percent, ((pid, process_percent),) = ask(card, program)
    assert pid == holder["pid"]
    assert percent > 0
    assert process_percent > 0


@pytest.fixture(scope="session")
def exported_by_535() -> set[str]:
    """Names that a 535 driver exports."""
    return set((Path(__file__).parent / "data" / "libnvml-535-exports.txt").read_text().split())
