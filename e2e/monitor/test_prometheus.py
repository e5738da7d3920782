"""The monitor's page before the real Prometheus: scraped, asked by every panel of the dashboard, alerted on."""

import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.monitor import dashboard
from e2e.monitor.prometheus import RULES, Prometheus, program
from e2e.monitor.watched import BYPASS, WatchedChain
from monitor.exposition import CONTENT_TYPE

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "tests" / "monitor" / "golden" / "metrics.txt"
MIB = 1 << 20


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[WatchedChain, str, Prometheus]]:
    """A healthy pod that is refused now and then, one that goes round its limit, and Prometheus."""
    with WatchedChain() as chain:
        address = chain.start_watching()
        with Prometheus([(address, "node-a")]) as prometheus:
            # (What is refused is larger than the share, so that it never takes what the other program needs.)
            greedy = "while vgpu-probe alloc 5g; sleep 1; do true; done & exec vgpu-probe hold --busy 1g"
            chain.run_script("train", greedy)["main"].wait_for_log("held ")
            chain.run_script("rogue", BYPASS)["main"].wait_for_log("held ")
            prometheus.wait_for('kai_isolator_state{pod="rogue",state="bypassed"} == 1')
            prometheus.wait_for('rate(kai_isolator_refusals_total{pod="train"}[15s]) > 0')
            yield chain, address, prometheus


def test_the_rules_are_right_by_promtool() -> None:
    done = subprocess.run([program("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_alert_fires_for_what_it_is_meant_for(tmp_path: Path) -> None:
    test = tmp_path / "rules_test.yaml"
    test.write_text((HERE / "rules_test.yaml").read_text().replace("[RULES]", f"[{RULES}]"))
    done = subprocess.run([program("promtool"), "test", "rules", test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_alert_has_a_unit_test() -> None:
    text = (HERE / "rules_test.yaml").read_text()
    for line in RULES.read_text().splitlines():
        if "- alert: " in line:
            assert line.rpartition(" ")[2] in text, line


def test_prometheus_finds_nothing_wrong_with_the_page(watched: tuple[WatchedChain, str, Prometheus]) -> None:
    _, address, prometheus = watched
    assert prometheus.query("up")[0]["value"][1] == "1"
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        page = answer.read()
    own = b"".join(line for line in page.splitlines(keepends=True) if b"kai_isolator_" in line.partition(b"{")[0])
    done = subprocess.run([program("promtool"), "check", "metrics"], input=own, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


class GoldenPage(BaseHTTPRequestHandler):
    """Serves the checked-in page."""

    def do_GET(self) -> None:
        """Answer as the monitor does."""
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.end_headers()
        self.wfile.write(GOLDEN.read_bytes())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Say nothing."""


def test_prometheus_reads_every_sample_of_the_golden_page_as_it_was_meant() -> None:
    meant = {
        (sample.name, *sorted((k, v) for k, v in sample.labels.items() if v)): sample.value  # "" is as good as none
        for family in text_string_to_metric_families(GOLDEN.read_text())
        for sample in family.samples
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), GoldenPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Prometheus([(f"127.0.0.1:{server.server_address[1]}", "node-a")]) as prometheus:
            prometheus.wait_for("kai_isolator_build_info")
            read = {}
            for sample in prometheus.query('{node="node-a",__name__!~"up|scrape_.*|ALERTS.*"}'):
                labels = {k: v for k, v in sample["metric"].items() if k not in ("node", "job", "instance")}
                read[labels.pop("__name__"), *sorted(labels.items())] = float(sample["value"][1])
        server.shutdown()
    assert read == meant


def test_what_prometheus_has_is_what_the_card_holds(watched: tuple[WatchedChain, str, Prometheus]) -> None:
    chain, _, prometheus = watched
    rogue = next(pod for pod in chain.pods if pod.name == "rogue")
    real = prometheus.query('kai_isolator_real_bytes{pod="rogue"}')
    assert [float(sample["value"][1]) for sample in real] == [chain.held_bytes(rogue)]
    assert real[0]["metric"]["node"] == "node-a"
    assert real[0]["metric"]["namespace"] == "team-a"


def test_load_goes_to_the_container_that_launches(watched: tuple[WatchedChain, str, Prometheus]) -> None:
    prometheus = watched[2]
    prometheus.wait_for("hami_host_gpu_utilization_ratio > 0.05 and hami_host_gpu_utilization_ratio < 1")
    prometheus.wait_for('hami_container_device_utilization_ratio{pod="train"} > 0.05')
    assert prometheus.query('hami_container_device_utilization_ratio{pod="rogue"}')[0]["value"][1] == "0"
    assert float(prometheus.query('hami_container_last_kernel_elapsed_seconds{pod="train"}')[0]["value"][1]) < 10


@pytest.mark.parametrize(("title", "query"), list(dashboard.queries()), ids=lambda text: text[:60])
def test_every_panel_has_data(watched: tuple[WatchedChain, str, Prometheus], title: str, query: str) -> None:
    watched[2].wait_for(query, 30)


def test_the_bypass_raises_its_alert_and_nothing_else_does(watched: tuple[WatchedChain, str, Prometheus]) -> None:
    prometheus = watched[2]
    prometheus.wait_for('ALERTS{alertname="KaiIsolatorPodBypassed",alertstate="firing",pod="rogue"}')
    firing = {
        (s["metric"]["alertname"], s["metric"].get("pod")) for s in prometheus.query('ALERTS{alertstate="firing"}')
    }
    assert firing == {("KaiIsolatorPodBypassed", "rogue")}


def test_a_pod_that_ends_is_gone_from_prometheus_with_the_next_scrape(
    watched: tuple[WatchedChain, str, Prometheus],
) -> None:
    chain, _, prometheus = watched
    chain.delete(next(pod for pod in chain.pods if pod.name == "rogue"))
    end = time.monotonic() + 20
    while prometheus.query('kai_isolator_state{pod="rogue"}'):
        assert time.monotonic() < end, "the pod's series live on"
        time.sleep(0.2)
