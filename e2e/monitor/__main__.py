"""`python -m e2e.monitor [FILE]`: draws the dashboard with real data, as it stands in the README.

A node with one card, pods that come, are refused, go round their limit and end; Prometheus; a minute and a half.
"""

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.monitor import dashboard
from e2e.monitor.drawing import Drawing, Series
from e2e.monitor.prometheus import ROOT, Prometheus
from e2e.monitor.watched import BYPASS, WatchedChain

SECONDS = 90
GROWING = (
    "for s in 512m 1g 1536m 2g 2560m 3g; do vgpu-probe hold --busy --seconds 9 $s; done & "
    "while sleep 2; do vgpu-probe alloc 5g; done"
)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """A series' name as Grafana makes it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda hit: labels.get(hit[1], ""), template)


def story(chain: WatchedChain) -> None:
    """What happens on the node while the picture is taken."""
    chain.run_script("steady", "exec vgpu-probe hold --busy 2g")
    chain.run_script("trainer", GROWING)
    time.sleep(SECONDS * 0.3)
    chain.run_script("rogue", BYPASS)
    time.sleep(SECONDS * 0.35)
    chain.delete(next(pod for pod in chain.pods if pod.name == "steady"))
    time.sleep(SECONDS * 0.35)


def draw(prometheus: Prometheus) -> str:
    """All panels with what Prometheus has."""
    until = time.time()
    drawing = Drawing(until - SECONDS, until)
    for panel in dashboard.panels():
        series: Series = []
        table: list[dict[str, Any]] = []
        for target in panel.get("targets", ()):
            expression = dashboard.filled(target["expr"])
            if panel["type"] == "table":
                table += [sample["metric"] for sample in prometheus.query(expression)]
                continue
            for found in prometheus.query_range(expression, SECONDS, 1):
                points = [(float(when), float(value)) for when, value in found["values"]]
                series.append((legend(target["legendFormat"], found["metric"]), points))
        drawing.panel(panel, series, table)
    return drawing.render("GPU shares: promised, enforced, real")


def main() -> None:
    """Draw it."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "monitor" / "dashboard.svg"
    with WatchedChain() as chain:
        address = chain.start_watching()
        with Prometheus([(address, "gpu-node-1")]) as prometheus:
            story(chain)
            target.write_text(draw(prometheus))
    print(target)


if __name__ == "__main__":
    main()
