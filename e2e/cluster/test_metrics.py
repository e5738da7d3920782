"""The pod's metrics, scraped on its node by a real Prometheus that selects as our PodMonitor says."""

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.chart.render import PROMETHEUS, render
from e2e.cluster.chain import GIB, MIB, Chain, sleeper
from e2e.cluster.release import NAME
from e2e.cluster.settings import NODE_IP, NODE_NAME, Settings

PORT = 9090


def _scrape_configuration(monitor: dict[str, Any], targets: str) -> dict[str, Any]:
    """What the Prometheus operator makes of a PodMonitor: one relabelling a selector, over all pods that there are."""
    spec = monitor["spec"]
    [endpoint] = spec["podMetricsEndpoints"]
    wanted = {"__meta_kubernetes_namespace": "|".join(spec["namespaceSelector"]["matchNames"])}
    wanted |= {_label(name): value for name, value in spec["selector"]["matchLabels"].items()}
    wanted["__meta_kubernetes_pod_container_port_name"] = endpoint["port"]
    keep = [{"action": "keep", "source_labels": [name], "regex": value} for name, value in wanted.items()]
    own = [
        {"source_labels": rule["sourceLabels"], "target_label": rule["targetLabel"]} for rule in endpoint["relabelings"]
    ]
    job = {
        "job_name": "monitor",
        "scrape_interval": endpoint.get("interval", "1s"),
        "honor_labels": endpoint["honorLabels"],
        "file_sd_configs": [{"files": [targets]}],
        "relabel_configs": [*keep, *own],
    }
    return {"scrape_configs": [job]}


def _label(name: str) -> str:
    return "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in name)


def _targets(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every port of every pod, as Prometheus' own discovery names them (Debian builds it without)."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                "__meta_kubernetes_pod_node_name": pod["spec"]["nodeName"],
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                **{_label(name): value for name, value in pod["metadata"].get("labels", {}).items()},
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


class Prometheus:
    """Debian's Prometheus inside the cluster's network."""

    def __init__(self, chain: Chain, monitor: dict[str, Any]) -> None:
        self._chain = chain
        folder = chain.own.folder / "prometheus"
        folder.mkdir()
        targets = _targets(chain.cluster.get("/api/v1/pods")["items"])
        assert len(targets) > 2  # the webhook's too: the selectors have something to leave out
        (folder / "targets.json").write_text(json.dumps(targets))
        configuration = _scrape_configuration(monitor, str(folder / "targets.json"))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        chain.own.spawn(
            "prometheus",
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={NODE_IP}:{PORT}",
            ],
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result vector; empty while it isn't up."""
        url = f"http://{NODE_IP}:{PORT}/api/v1/query?query={urllib.parse.quote(expression)}"
        done = self._chain.cluster.run(["curl", "--silent", "--fail", url], check=False)
        if done.returncode:
            return []
        result: list[dict[str, Any]] = json.loads(done.stdout)["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        """The one sample's value, None where there isn't exactly one."""
        result = self.query(expression)
        return float(result[0]["value"][1]) if len(result) == 1 else None


@pytest.fixture(scope="module")
def prometheus(chain: Chain, settings: Settings) -> Iterator[Prometheus]:
    monitor = render(settings, "--set=monitor.podMonitor.enabled=true", PROMETHEUS).one("PodMonitor")
    assert monitor["metadata"]["namespace"] == NAME
    started = Prometheus(chain, monitor)
    yield started
    chain.own.stop("prometheus")


def test_prometheus_finds_the_monitor_by_the_pod_monitors_selectors(chain: Chain, prometheus: Prometheus) -> None:
    chain.cluster.wait("the target is up", lambda: prometheus.value('up{job="monitor"}') == 1, 30, 0.5)
    [sample] = prometheus.query("up")  # nothing else was selected
    assert sample["metric"]["node"] == NODE_NAME
    print(f"target {sample['metric']['instance']} is up on node {sample['metric']['node']}")


def test_pods_metrics_say_what_the_card_says(chain: Chain, prometheus: Prometheus) -> None:
    pod = chain.start(sleeper("measured", command=["vgpu-probe", "hold", "3GiB"]))
    pod.wait_for_log("held     3 GiB")
    own = '{namespace="default",pod="measured",container="main",zone="vGPU"}'
    used = chain.used_bytes()
    assert used > 3 * GIB

    def agree() -> bool:
        return (
            prometheus.value(f"hami_vgpu_memory_used_bytes{own}") == used
            and prometheus.value(f"hami_vgpu_memory_limit_bytes{own}") == 4147 * MIB
            and prometheus.value('hami_host_gpu_memory_used_bytes{device_type="NVIDIA-Tesla T4"}') == used
        )

    chain.cluster.wait("metrics and card agree", agree, 30, 0.5)
    print(f"scraped: used {used} bytes as the card says, limit {4147 * MIB}")
    pod.delete()
    chain.cluster.wait(
        "the series is gone", lambda: prometheus.query(f"hami_vgpu_memory_used_bytes{own}") == [], 30, 0.5
    )


def test_pod_is_deleted_without_delay_while_the_monitor_reads(chain: Chain, prometheus: Prometheus) -> None:
    """A file kept open or mapped would hold up the volume's end by minutes."""
    pod = chain.start(sleeper("deleted", command=["vgpu-probe", "hold", "1GiB"]))
    pod.wait_for_log("held")
    chain.cluster.wait(
        "it is scraped", lambda: bool(prometheus.query('hami_vgpu_memory_used_bytes{pod="deleted"}')), 30, 0.5
    )
    uid = pod.get()["metadata"]["uid"]
    took = pod.delete(30)
    folder = chain.node.folder / "kubelet" / "pods" / uid
    chain.cluster.wait("its folder is gone", lambda: not folder.exists(), 30)
    print(f"deleted in {took:.1f} s while it was scraped every second, its volumes are gone")
