"""nvidia-ml-py, what most Python programs and exporters ask: it shows the share, not the card."""

from __future__ import annotations

import pytest

from tests.clients.conftest import CONTEXT, GIB, QUOTA, Container
from tests.probe.conftest import Probe

CLIENTS = ["nvml11", "nvml13"]


@pytest.mark.parametrize("client", CLIENTS)
def test_both_versions_of_the_question_show_the_share(container: Container, client: str) -> None:
    """Another process of the container holds 1 GiB: it counts, with its context."""
    holder = Probe(container.card, container.region.parent, "2200m")
    with holder.holding("1GiB"), container.talk(client, "nvml") as conversation:
        fact = conversation.hear()
        assert fact["uuid"] == container.card.truth()[0]["uuid"]
        expected = {"total": QUOTA, "used": GIB + CONTEXT, "free": QUOTA - GIB - CONTEXT}
        assert fact["first"] == fact["second"] == expected
        conversation.go_on()


@pytest.mark.parametrize("client", CLIENTS)
def test_neighbour_is_not_seen_in_the_share(container: Container, client: str) -> None:
    """What other containers hold of the card is none of this one's use, and takes nothing from what it shows free."""
    with Probe(container.card, container.region.parent).holding("3GiB"), container.talk(client, "nvml") as conversation:
        fact = conversation.hear()
        assert fact["first"] == {"total": QUOTA, "used": 0, "free": QUOTA}
        conversation.go_on()
