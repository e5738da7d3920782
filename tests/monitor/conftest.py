"""What the monitor's tests share."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitor.tree import Node

ROOT = Path(__file__).resolve().parents[2]
Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """An empty node."""
    made = Node(tmp_path / "kubelet")
    (made.root / "pods").mkdir(parents=True)
    yield made
    made.close()


def samples(page: str) -> dict[str, dict[Labels, float]]:
    """All samples of a page: name -> sorted labels -> value."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(page: str, name: str, **labels: str) -> float | None:
    """The one sample of that name with those labels among its own; None if there is none."""
    hits = [v for have, v in samples(page).get(name, {}).items() if labels.items() <= dict(have).items()]
    assert len(hits) <= 1, f"{name} {labels}: {len(hits)} samples"
    return hits[0] if hits else None


def state(page: str, pod: str, **labels: str) -> str | None:
    """The state of enforcement that a page gives a pod."""
    found = samples(page).get("kai_isolator_state", {})
    hits = [
        dict(have)["state"]
        for have, v in found.items()
        if v == 1 and {"pod": pod, **labels}.items() <= dict(have).items()
    ]
    assert len(hits) <= 1, hits
    return hits[0] if hits else None


@dataclass
class Monitor:
    """A running monitor."""

    process: subprocess.Popen[str]
    port: int
    log: Path
    lines: list[str] = field(default_factory=list)

    def get(self, path: str = "/metrics") -> str:
        """Fetch a page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def evidence(self) -> dict[str, Any]:
        """Fetch the picture."""
        picture: dict[str, Any] = json.loads(self.get("/evidence"))
        return picture

    def stop(self) -> int:
        """End it; gives the exit code."""
        self.process.terminate()
        return self.process.wait(20)


def port_of(log: Path, process: subprocess.Popen[Any]) -> int:
    """Wait for the line that says where it serves."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            if "serving http://" in line:
                return int(line.rpartition(":")[2].partition("/")[0])
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"the monitor doesn't serve: {log.read_text()}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Monitor]]:
    """Start the real program on a free port: `start(root, "--flag", …, env={…})`."""
    running: list[Monitor] = []

    def run(
        kubelet_root: Path, *flags: str, env: dict[str, str] | None = None, python: str = sys.executable
    ) -> Monitor:
        log = tmp_path / f"monitor-{len(running)}.log"
        command = [
            python,
            "-m",
            "monitor",
            "--listen",
            "127.0.0.1:0",
            "--kubelet-root",
            str(kubelet_root),
            *flags,
        ]
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=env or dict(os.environ), stdout=out, stderr=subprocess.STDOUT, text=True
            )
        monitor = Monitor(process, 0, log)
        running.append(monitor)
        monitor.port = port_of(log, process)
        return monitor

    yield run
    for monitor in running:
        if monitor.process.poll() is None:
            monitor.stop()
