"""Evidence of real containers: matched by their control groups, named by the API server, told by Events."""

import re
from pathlib import Path

import pytest

from e2e.cluster.chain import GIB, Chain, Pod, sleeper
from e2e.cluster.client import Object
from e2e.cluster.release import NAME

CONTEXT = 102 << 20
# A copy of the dynamic linker that looks for another preload file: what a static program is, without being one.
BYPASS = (
    "sed s,/etc/ld.so.preload,/etc/ld.so.nothing, /lib64/ld-linux-x86-64.so.2 > /tmp/ld.so && chmod +x /tmp/ld.so && "
    "exec /tmp/ld.so $(command -v vgpu-probe) hold 2GiB"
)


class Monitor:
    """The monitor's pod, scraped inside the cluster's network."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        selector = "app.kubernetes.io/component%3Dmonitor"
        [pod] = chain.cluster.get(f"/api/v1/namespaces/{NAME}/pods?labelSelector={selector}")["items"]
        self._address = f"http://{pod['status']['podIP']}:9394"
        self.uid: str = pod["metadata"]["uid"]

    def page(self) -> str:
        """One scrape; empty where nobody serves."""
        return self._chain.cluster.run(["curl", "--silent", "--fail", f"{self._address}/metrics"], check=False).stdout

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample of that name with those labels among its own."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        lines = (line for line in self.page().splitlines() if line.startswith(f"{name}{{"))
        hits = [line for line in lines if wanted <= set(re.findall(r'\w+="[^"]*"', line))]
        return float(hits[0].rpartition(" ")[2]) if len(hits) == 1 else None

    def wait_for_state(self, pod: Pod, state: str) -> None:
        """Scrape until the pod has that state."""

        def has() -> bool:
            return self.value("kai_isolator_state", pod=pod.name, state=state) == 1

        self._chain.cluster.wait(f"{pod.name} is {state}", has, 60, 0.5)

    def processes(self) -> list[dict[str, str]]:
        """Fields of /proc/<pid>/status of its two processes, the reader first."""
        mine = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if (
                    self.uid in status.with_name("cgroup").read_text()
                    and b"monitor" in status.with_name("cmdline").read_bytes()
                ):
                    mine.append(dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line))
            except OSError:
                continue
        return sorted(mine, key=lambda fields: int(fields["Pid"]))


@pytest.fixture(scope="module")
def monitor(chain: Chain) -> Monitor:
    assert chain.own
    return Monitor(chain)


def test_every_source_answers(monitor: Monitor) -> None:
    for source in ("regions", "proc", "nvml", "pods"):
        assert monitor.value("kai_isolator_source_up", source=source) == 1, source


def test_a_containers_processes_are_found_by_their_control_group(chain: Chain, monitor: Monitor) -> None:
    pod = chain.start(sleeper("counted", command=["vgpu-probe", "hold", "3GiB"]))
    pod.wait_for_log("held")
    monitor.wait_for_state(pod, "enforced")
    for name in ("kai_isolator_real_bytes", "kai_isolator_tracked_bytes"):
        assert monitor.value(name, pod="counted", container="main") == chain.used_bytes() == 3 * GIB + CONTEXT
    assert monitor.value("kai_isolator_promised_bytes", pod="counted", source="kai") == 4147 << 20
    pod.delete()
    assert monitor.value("kai_isolator_real_bytes", pod="counted") is None


def test_a_program_without_the_library_turns_its_pod_bad_and_the_owner_reads_why(
    chain: Chain, monitor: Monitor
) -> None:
    pod = chain.start(sleeper("rogue", command=["sh", "-c", BYPASS]))
    pod.wait_for_log("held")
    monitor.wait_for_state(pod, "not_loaded")
    assert monitor.value("kai_isolator_real_bytes", pod="rogue") == 2 * GIB + CONTEXT
    chain.cluster.wait("the Event is there", lambda: "GPUQuotaNotLoaded" in pod.events(), 30, 0.5)
    print(pod.events())


def test_a_pod_without_a_share_is_told_from_unknown_processes(chain: Chain, monitor: Monitor) -> None:
    def without_share(pod: Object) -> None:
        pod["metadata"]["annotations"] = {}
        pod["spec"]["runtimeClassName"] = "nvidia"
        pod["spec"]["schedulerName"] = "default-scheduler"
        pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

    pod = chain.start(sleeper("free", without_share, ["vgpu-probe", "hold", "1GiB"]))
    pod.wait_for_log("held")
    used = GIB + CONTEXT
    assert monitor.value("kai_isolator_card_unmanaged_bytes", holder="no_share") == used
    assert monitor.value("kai_isolator_card_unmanaged_bytes", holder="unknown") == 0
    assert monitor.value("kai_isolator_real_bytes", pod="free") == used


def test_a_container_that_crashed_keeps_its_place(chain: Chain, monitor: Monitor) -> None:
    def restarts(pod: Object) -> None:
        pod["spec"]["restartPolicy"] = "Always"

    pod = chain.start(
        sleeper("crashes", restarts, ["sh", "-c", "vgpu-probe alloc 5GiB; vgpu-probe hold --seconds 2 1GiB; exit 1"])
    )
    chain.cluster.wait(
        "it has crashed", lambda: pod.get()["status"]["containerStatuses"][0]["restartCount"] > 0, 60, 0.5
    )
    assert (monitor.value("kai_isolator_refusals_total", pod="crashes") or 0) >= 1, "the ledger outlives the container"
    pod.delete()


def test_the_reader_is_root_with_nothing_and_the_exporter_nobody_with_nothing(monitor: Monitor) -> None:
    reader, exporter = monitor.processes()
    assert reader["Uid"].split() == ["0"] * 4
    assert exporter["Uid"].split() == exporter["Gid"].split() == ["65534"] * 4
    for process in (reader, exporter):
        assert {process[name].strip() for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
        assert process["NoNewPrivs"].strip() == "1"
    assert int(reader["Seccomp_filters"]) >= 2, "the runtime's and its own"


def test_both_processes_together_are_small(monitor: Monitor) -> None:
    resident_kib = [int(process["VmRSS"].split()[0]) for process in monitor.processes()]
    print(f"reader and exporter: {resident_kib} KiB")
    assert sum(resident_kib) < 80 << 10
