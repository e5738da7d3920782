"""The chart's webhook, installed once; a test starts the replicas that it needs."""

from collections.abc import Iterator

import pytest

from e2e.apiserver.replicas import Release
from e2e.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def release(api_server: Cluster) -> Iterator[Release]:
    """The release, with the runtime classes that the cases name."""
    release = Release(api_server)
    for name in ("nvidia", "gvisor", "kata-qemu-nvidia-gpu", "microvm-7"):
        release.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": name.lower()})
    yield release
    release.stop_all()
