"""What every end-to-end test may ask for, and how workers share the tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from e2e.cluster import programs
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings

# Files that need nothing of what the others of their folder share.
CLUSTERS_OF_THEIR_OWN = ["e2e/cluster/test_harness.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Runs that need more than this machine: a cluster with KAI and the chart installed, a card."""
    parser.addoption("--foreign", action="store_true", help="use the cluster that KUBECONFIG names")
    parser.addoption("--gpu", action="store_true", help="run e2e/gpu, which needs a card")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What needs a real card is no part of an ordinary run."""
    return True if collection_path.name == "gpu" and not config.getoption("--gpu") else None


class FolderScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Gives whole folders to a worker: the cluster that a folder's tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in CLUSTERS_OF_THEIR_OWN else str(Path(file).parent)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling:
    """Folders by their names, rather than by how many tests are in them: the long ones come first so."""
    config.option.loadscopereorder = False
    return FolderScheduling(config, log)


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
    """One line a claim, with what was seen: what the test printed. In the order of the files, whoever ran them."""
    seen = []
    for report in sorted(terminalreporter.getreports("passed"), key=lambda report: str(report.location[0])):
        claim = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        printed = [text for name, text in report.sections if name == "Captured stdout call"]
        seen += [f"{claim}: {line}" for text in printed for line in text.splitlines()]
    if seen:
        terminalreporter.section("what was seen")
    for line in seen:
        terminalreporter.write_line(line)
