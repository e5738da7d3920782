"""Whatever a program does, the quota counts what the card really holds: after each step of a random walk."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Container

STEPS = 200


@pytest.mark.parametrize("client", ["cuda12", "cuda13"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_ledger_is_the_card_s_truth_at_every_step(container: Container, client: str, seed: str) -> None:
    """Never less, never above the quota; equal unless managed memory is held, which the card charges when touched."""
    with container.talk(client, "random_walk", seed, str(STEPS)) as conversation:
        for number in range(STEPS + 1):
            fact = conversation.hear()
            held = container.card.truth()[0]["used_bytes"]
            where = f"step {number}: {fact}, the card holds {held}"
            assert held <= fact["used"] <= fact["total"], where
            assert fact["managed"] > 0 or fact["used"] == held, where
            conversation.go_on()
    assert container.card.truth()[0]["used_bytes"] == 0
