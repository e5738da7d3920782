"""A node of this machine, and pods on it. Needs root or user namespaces: without them each test says the remedy."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from e2e.onebox.chain import Chain
from e2e.onebox.node import Node
from e2e.onebox.pod import Pod

Manifest = dict[str, Any]
MakePod = Callable[..., Pod]
_numbers = count()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A node without the chain."""
    with Node() as one:
        yield one


@pytest.fixture
def make_pod(node: Node) -> Iterator[MakePod]:
    """Put a pod on the node (it isn't started): a container `main` that sleeps, unless told otherwise."""
    with ExitStack() as stack:

        def make(
            config_maps: dict[str, dict[str, str]] | None = None,
            annotations: dict[str, str] | None = None,
            main: Manifest | None = None,
            **spec: Any,
        ) -> Pod:
            number = next(_numbers)
            container = {"name": "main", "command": ["sleep", "infinity"]} | (main or {})
            manifest = {
                "metadata": {"name": f"pod-{number}", "uid": f"uid-{number}", "annotations": annotations or {}},
                "spec": {"containers": [container]} | spec,
            }
            return stack.enter_context(Pod(node, manifest, config_maps if config_maps is not None else {}))

        yield make


@pytest.fixture(scope="session")
def chain() -> Iterator[Chain]:
    """A node with a T4, prepared by libsync, and the webhook."""
    with Chain() as one:
        one.prepare_node()
        one.start_webhook()
        yield one


@pytest.fixture
def run_share(chain: Chain) -> Iterator[MakePod]:
    """Send a pod with a share through the chain and start it; it goes with the test."""
    made: list[Pod] = []

    def run(
        annotations: dict[str, str] | None = None,
        main: Manifest | None = None,
        label_mib: int | None = 15360,
        start: bool = True,
        **spec: Any,
    ) -> Pod:
        container = {"name": "main", "image": "probe", "command": ["sleep", "infinity"]} | (main or {})
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"share-{next(_numbers)}",
                "annotations": annotations if annotations is not None else {"gpu-memory": "4096"},
            },
            "spec": {"schedulerName": "kai-scheduler", "containers": [container]} | spec,
        }
        pod = chain.admit(manifest, label_mib)
        made.append(pod)
        return pod.start() if start else pod

    yield run
    for pod in made:
        chain.delete(pod)
