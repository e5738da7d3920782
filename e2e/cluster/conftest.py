"""The whole chain, once a session: a node, KAI's part, the images, and the chart as an operator installs it."""

from collections.abc import Iterator

import pytest

from e2e.cluster.chain import Chain
from e2e.cluster.cluster import Cluster
from e2e.cluster.foreign import ForeignCluster, reason_to_skip
from e2e.cluster.settings import Settings
from e2e.images.catalog import build_all


@pytest.fixture(autouse=True)
def _empty_card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed leaves no pod to the next one."""
    yield
    if "chain" in request.fixturenames:
        chain: Chain = request.getfixturevalue("chain")
        chain.remove_pods()


@pytest.fixture(scope="session")
def chain(settings: Settings, request: pytest.FixtureRequest) -> Iterator[Chain]:
    """The chart installed on a node with one simulated T4 that KAI shares out; with --foreign on somebody's cluster."""
    if request.config.getoption("--foreign"):
        foreign = ForeignCluster(settings)
        reason = reason_to_skip(foreign)
        if reason:
            pytest.skip(reason)
        yield Chain(foreign)
        return
    with Cluster(settings, node=True, images=[build_all(settings)]) as cluster:
        chain = Chain(cluster)
        chain.start_kai()
        chain.install()
        yield chain
