"""The whole /metrics page on a fixture tree is one checked-in file, and the README's table is the code's."""

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from monitor import metrics, reader
from monitor.cards import Card
from monitor.events import Events
from monitor.exposition import Page
from monitor.joiner import Joiner
from monitor.messages import Holding, Scan
from monitor.podfile import PodFile
from monitor.updater import Updater
from tests.monitor.conftest import samples
from tests.monitor.tree import MIB, T4, T4_BYTES, Node, WrittenDevice, WrittenSlot, uid

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "metrics.txt"
README = HERE.parents[1] / "monitor" / "README.md"
SECOND = "GPU-22222222-0000-4000-8000-000000000000"


class FixtureReader:
    """The reader's own look at the tree, with processes that no /proc here knows."""

    def __init__(self, node: Node, holdings: list[Holding]) -> None:
        self._node = node
        self._holdings = {h.pid: h for h in holdings}

    def scan(self, pids: object) -> Scan:
        return reader.scan(self._node.root, Path("/proc"), [], by_mount=False)._replace(holdings=self._holdings)


class FixtureCards:
    """Two cards with given processes."""

    def read(self) -> tuple[Card, ...]:
        held = {71: 3174 * MIB, 72: 1024 * MIB, 73: 200 * MIB, 74: 700 * MIB}
        return (
            Card("0", T4, "Tesla T4", T4_BYTES, 6000 * MIB, 0.5, held, {71: 0.25}),
            Card("1", SECOND, "Tesla T4", T4_BYTES, 0, 0.0, {75: 512 * MIB}),
        )


def fixture_tree(node: Node) -> None:
    """A healthy pod, one on two cards, one that goes round the limit, one not injected, one with a spoiled region."""
    pod = node.pod(1, "train", {"gpu-memory": "4096"})
    node.quota(pod, limit="4147m", gpu_memory="4096")
    slots = {0: WrittenSlot([(102 * MIB, MIB, 3071 * MIB)], [5])}
    node.region(
        pod, [WrittenDevice(refusals=2, largest=2 << 30, last_ns=1_700_000_000_500_000_000, peak=3200 * MIB)], slots
    )
    pod = node.pod(2, "wide", {"gpu-fraction": "0.25"})
    devices = [WrittenDevice(limit=3840 * MIB, source=3), WrittenDevice(uuid=SECOND, limit=3840 * MIB, source=3)]
    node.region(pod, devices, {0: WrittenSlot([(102 * MIB, 0, 922 * MIB), (102 * MIB, 0, 0)])})
    pod = node.pod(3, "missed", {"gpu-memory": "2048"}, injected=False)
    pod = node.pod(4, 'odd"name', {"gpu-memory": "1024"})
    node.region(pod, [WrittenDevice()]).write_bytes(b"junk")


def page(node: Node, legacy: bool = False) -> str:
    holdings = [
        Holding(71, uid(1), f"{1:032x}{0:032x}", ""),
        Holding(72, uid(2), f"{2:032x}{0:032x}", ""),
        Holding(73, uid(3), f"{3:032x}{0:032x}", ""),
        Holding(75, uid(2), f"{2:032x}{0:032x}", ""),
    ]
    clock = iter(range(1000, 100_000, 3))
    updater = Updater(
        reader=FixtureReader(node, holdings),
        cards=FixtureCards(),
        pods=PodFile(node.pods_file()),
        joiner=Joiner(1, 64 * MIB),
        announcer=Events(None, lambda: 0.0),
        deadline=30,
        version="0.1.0",
        abi=1,
        clock=lambda: float(next(clock)),
        wall=lambda: 1_700_000_000.25,
    )
    updater.update()
    return metrics.render(updater.update(), legacy).decode()


def test_the_page_is_the_golden_one(node: Node) -> None:
    """To renew it after a wanted change: delete the file, run this test, look at the difference."""
    fixture_tree(node)
    made = page(node, legacy=True)
    if not GOLDEN.exists():
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(made)
        pytest.fail(f"{GOLDEN} was written anew: look at it, then run the test again")
    assert made == GOLDEN.read_text()


def test_a_page_reads_back_by_prometheus_own_parser(node: Node) -> None:
    fixture_tree(node)
    found = samples(page(node))
    assert ("pod", 'odd"name') in next(k for k in found["kai_isolator_region_problem"])
    assert set(found) <= {metric.name for metric in (*metrics.HAMI, *metrics.OWN)}, "no legacy names unless asked for"


def test_every_metric_of_the_table_is_on_the_golden_page_with_its_labels() -> None:
    found = samples(GOLDEN.read_text())
    for metric in (*metrics.HAMI, *metrics.OWN, *metrics.LEGACY):
        assert metric.name in found, metric.name
        for labels in found[metric.name]:
            assert {name for name, _ in labels} == set(metric.labels), metric.name
            assert metric in metrics.OWN or ("zone", "vGPU") in labels, metric.name


def test_names_and_labels_of_the_outside_contract() -> None:
    """What dashboards of HAMi's users are built on."""
    card = ("device_index", "device_uuid", "device_type", "zone")
    container = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")
    contract = {
        "hami_host_gpu_memory_used_bytes": card,
        "hami_host_gpu_utilization_ratio": card,
        "hami_vgpu_memory_used_bytes": container,
        "hami_vgpu_memory_limit_bytes": container,
        "hami_container_device_memory_bytes": container,
        "hami_container_device_utilization_ratio": container,
        "hami_container_last_kernel_elapsed_seconds": container,
        "hami_vgpu_memory_context_bytes": container,
        "hami_vgpu_memory_module_bytes": container,
        "hami_vgpu_memory_buffer_bytes": container,
    }
    assert {metric.name: metric.labels for metric in metrics.HAMI} == contract
    assert 'device_type="NVIDIA-Tesla T4",' in GOLDEN.read_text()


def test_own_names_have_prefix_base_units_and_total_for_counters() -> None:
    units = ("_bytes", "_seconds", "_ratio", "_total", "_info", "_state", "_up", "_processes", "_problem")
    for metric in metrics.OWN:
        assert metric.name.startswith("kai_isolator_")
        assert metric.name.endswith(units), metric.name
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name


def test_the_readmes_table_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", README.read_text(), re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows}
    assert documented == {m.name: (m.kind, m.labels, m.text) for m in (*metrics.HAMI, *metrics.OWN, *metrics.LEGACY)}


def test_sizes_stay_exact() -> None:
    """Prometheus' numbers are doubles: exact up to 8 PiB."""
    made = Page(metrics.OWN)
    made.add("kai_isolator_card_memory_bytes", ("0", T4), 2**53 - 1)
    assert set(samples(made.render().decode())["kai_isolator_card_memory_bytes"].values()) == {float(2**53 - 1)}


def test_page_is_byte_for_byte_the_client_librarys() -> None:
    """Odd names, no labels, counters, large and endless numbers."""
    families: list[CounterMetricFamily | GaugeMetricFamily] = []
    table = [m for m in metrics.OWN if m.name in ("kai_isolator_refusals_total", "kai_isolator_update_seconds")]
    odd = ('a"b', "c\\d", "e\nf", "ü", "")
    values = (0, 1, 2.5, 3328180224, 1e22, float("inf"), float("nan"))
    made = Page(table)
    for metric in table:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.text, labels=metric.labels)
        for value in values:
            labels = odd[: len(metric.labels)]
            made.add(metric.name, labels, value)
            family.add_metric(labels, value)
        families.append(family)
    collector = SimpleNamespace(collect=lambda: families)
    assert made.render() == generate_latest(cast(CollectorRegistry, collector))


def test_promtool_finds_nothing_wrong_with_own_names() -> None:
    """HAMi's names are not ours to judge; where promtool isn't installed the parser above has to do."""
    promtool = shutil.which("promtool")
    if not promtool:
        print("promtool is not installed: only client_python's parser has judged the page")
        return
    own = "".join(
        line for line in GOLDEN.read_text().splitlines(keepends=True) if "kai_isolator_" in line.partition("{")[0]
    )
    done = subprocess.run([promtool, "check", "metrics"], input=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
