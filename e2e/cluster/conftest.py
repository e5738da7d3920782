"""The whole chain, once a session: a node, KAI's part, the images, and the chart as an operator installs it."""

from collections.abc import Iterator

import pytest

from e2e.cluster.chain import Chain
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings
from e2e.images.catalog import build_all


@pytest.fixture(scope="session")
def chain(settings: Settings) -> Iterator[Chain]:
    """The chart installed on a node with one simulated T4 that KAI shares out."""
    with Cluster(settings, node=True, images=[build_all(settings)]) as cluster:
        chain = Chain(cluster)
        chain.start_kai()
        chain.install()
        yield chain
