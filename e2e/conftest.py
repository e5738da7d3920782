"""What every end-to-end test may ask for: the programs of Kubernetes, and an API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import programs
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Runs that need more than this machine: a cluster with KAI and the chart installed, a card."""
    parser.addoption("--foreign", action="store_true", help="use the cluster that KUBECONFIG names")
    parser.addoption("--gpu", action="store_true", help="run e2e/gpu, which needs a card")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a real card is no part of an ordinary run."""
    return True if collection_path.name == "gpu" and not config.getoption("--gpu") else None


@pytest.fixture(scope="session")
def settings(request: pytest.FixtureRequest) -> Settings:
    """Where things lie, with everything that a cluster needs provided (built once, then cached)."""
    settings = Settings()
    tools_are_there = all(Path(settings.tool(name)).exists() for name in ("kubectl", "helm"))
    if not (request.config.getoption("--foreign") and tools_are_there):
        programs.provide(settings)
    return settings


@pytest.fixture(scope="session")
def api_server(settings: Settings) -> Iterator[Cluster]:
    """etcd and a kube-apiserver alone, ready within seconds: for whatever needs no running pod."""
    with Cluster(settings, node=False) as cluster:
        yield cluster


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a claim, with what was seen: what the test printed."""
    seen = []
    for report in terminalreporter.getreports("passed"):
        claim = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        printed = [text for name, text in report.sections if name == "Captured stdout call"]
        seen += [f"{claim}: {line}" for text in printed for line in text.splitlines()]
    if seen:
        terminalreporter.section("what was seen")
    for line in seen:
        terminalreporter.write_line(line)
