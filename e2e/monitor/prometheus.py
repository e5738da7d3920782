"""The real Prometheus, scraping monitors of this machine."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from e2e.onebox.chain import free_port

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "chart" / "files" / "rules.yaml"
REMEDY = "{0} is not installed: on Debian and Ubuntu it is in the package prometheus (apt-get install prometheus)"


class MissingProgramError(Exception):
    """Prometheus or promtool isn't there; the text says the remedy."""


def program(name: str) -> str:
    """Path of a program of the package prometheus. MissingProgramError."""
    path = shutil.which(name)
    if not path:
        raise MissingProgramError(REMEDY.format(name))
    return path


class Prometheus:
    """Use as a context manager. `targets` are (host:port, node name), scraped as the chart's PodMonitor says."""

    def __init__(self, targets: Sequence[tuple[str, str]], interval_seconds: float = 1) -> None:
        self._targets = targets
        self._interval = f"{round(interval_seconds * 1000)}ms"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._directory = tempfile.TemporaryDirectory(prefix="prometheus-")

    def __enter__(self) -> "Prometheus":
        directory = Path(self._directory.name)
        settings = {
            "global": {"scrape_interval": self._interval, "evaluation_interval": self._interval},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "monitor",
                    "honor_labels": True,
                    "static_configs": [{"targets": [a], "labels": {"node": node}} for a, node in self._targets],
                }
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._port = free_port()
        log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
        log.close()
        end = time.monotonic() + 60
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise MissingProgramError(f"prometheus doesn't start: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
        self._directory.cleanup()

    def _is_ready(self) -> bool:
        """It listens before it answers queries with more than 503."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=30):
                return True
        except OSError:
            return False

    def get(self, path: str, **parameters: str | float) -> Any:
        """Ask its HTTP API; the data of the answer. Raises AssertionError with Prometheus' words for a bad query."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{parameters}: {e.read().decode()}") from e

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def query_range(self, expression: str, seconds: float, step: float) -> list[dict[str, Any]]:
        """The series of an expression over the last seconds."""
        now = time.time()
        data = self.get("query_range", query=expression, start=now - seconds, end=now, step=step)
        found: list[dict[str, Any]] = data["result"]
        return found

    def wait_for(self, expression: str, seconds: float = 60) -> list[dict[str, Any]]:
        """Wait until an expression has a sample. The limit only ends a run that failed."""
        end = time.monotonic() + seconds
        while not (found := self.query(expression)):
            assert time.monotonic() < end, f"Prometheus has nothing for {expression}"
            time.sleep(0.2)
        return found
