"""An API server of its own: a release can be in a cluster once."""

from collections.abc import Iterator

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings


@pytest.fixture(scope="module")
def api_server(settings: Settings) -> Iterator[Cluster]:
    """etcd and a kube-apiserver, for one module."""
    with Cluster(settings, node=False) as cluster:
        yield cluster
