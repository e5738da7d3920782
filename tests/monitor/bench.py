"""How long a scrape takes and how much memory the two processes have, on a node with many containers.

`python -m tests.monitor.bench` prints it, with --json as JSON. Nothing here is a test: times are this machine's.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.monitor.apiserver import Server
from tests.monitor.conftest import ROOT, port_of
from tests.monitor.tree import MIB, Node, WrittenDevice, WrittenSlot

PROCESSES = 4  # in each container
PADDING = [{"manager": "kubelet", "fieldsV1": {f"f:{i}": {} for i in range(1000)}}]  # a pod's object has some 10 KiB


def fill(node: Node, containers: int, cards: int, everywhere: bool) -> None:
    """Pods with a share each, on one card in turn or on all."""
    uuids = [f"GPU-{card:08d}-0000-4000-8000-000000000000" for card in range(cards)]
    for number in range(containers):
        pod = node.pod(number, f"pod-{number}", {"gpu-memory": "1024"})
        node.quota(pod, limit="1024m", gpu_memory="1024")
        mine = uuids if everywhere else [uuids[number % cards]]
        devices = [WrittenDevice(uuid=uuid, limit=1024 * MIB) for uuid in mine]
        slots = {i: WrittenSlot([(MIB, MIB, MIB)] * len(mine), [i + 1] * len(mine)) for i in range(PROCESSES)}
        node.region(pod, devices, slots)


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def processor_ms(pids: list[int]) -> float:
    """Processor time that processes have used so far: what a scrape costs whatever else the machine does."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def measure(containers: int, cards: int, everywhere: bool, scrapes: int) -> dict[str, float]:
    """Scrape a monitor of its own so many times; times in milliseconds, memory in MiB."""
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory) / "kubelet")
        fill(node, containers, cards, everywhere)
        log = Path(directory) / "log"
        server = Server()
        server.items = [{**pod, "metadata": {**pod["metadata"], "managedFields": PADDING}} for pod in node.pods]
        flags = ["--listen", "127.0.0.1:0", "--kubelet-root", str(node.root)]
        flags += ["--api-server", server.url, "--node-name", "node-a"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "SIMGPU_"))}
        state = Path(directory) / "card"
        simgpu = ROOT / "build" / "simgpu"
        cards_flags = [flag for _ in range(cards) for flag in ("--card", "T4")]
        subprocess.run([simgpu / "simgpu", "create", "--state", state, *cards_flags], check=True)
        env |= {"LD_LIBRARY_PATH": str(simgpu), "SIMGPU_STATE": str(state)}
        with log.open("w") as out:
            command = [sys.executable, "-m", "monitor", *flags, "--interval", "600"]
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out)
        try:
            # One connection for all scrapes, as Prometheus does it.
            connection = http.client.HTTPConnection("127.0.0.1", port_of(log, process), timeout=60)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            pids = [process.pid, int(children[0])]
            times, before, size = [], 0.0, 0
            worked = processor_ms(pids)
            for number in range(scrapes):
                began = time.perf_counter()
                connection.request("GET", "/metrics")
                size = len(connection.getresponse().read())
                times.append((time.perf_counter() - began) * 1000)
                if number == scrapes // 10:
                    before = sum(map(resident_mib, pids))
            worked = processor_ms(pids) - worked
            memory = [resident_mib(pid) for pid in pids]
            connection.close()
        finally:
            process.terminate()
            process.wait()
            server.http.shutdown()
            server.http.server_close()
            node.close()
    return {
        "processor_ms": worked / scrapes,
        "best_ms": min(times),
        "median_ms": statistics.median(times),
        "p99_ms": sorted(times)[int(len(times) * 0.99)],
        "reader_mib": memory[0],
        "exporter_mib": memory[1],
        "grown_mib": sum(memory) - before,
        "page_kib": size / 1024,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.monitor.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--scrapes", type=int, default=200, help="scrapes of each node (%(default)s)")
    given = parser.parse_args()
    cases = {"10 containers, 1 card": (10, 1, False), "100 containers on 8 cards": (100, 8, False),
             "100 containers, each on all of 8 cards": (100, 8, True)}  # fmt: skip
    results = {name: measure(*case, given.scrapes) for name, case in cases.items()}
    if given.json:
        print(json.dumps(results, indent=1))
        return
    for name, result in results.items():
        print(f"{name:40} " + "  ".join(f"{key} {value:.1f}" for key, value in result.items()))


if __name__ == "__main__":
    main()
