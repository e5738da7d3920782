"""cuda-bindings, the driver module of NVIDIA's own Python: all of it goes through cuGetProcAddress_v2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.conftest import CONTEXT, QUOTA, Container

WAYS = ["linear", "pitch", "managed", "async", "pool", "virtual", "array"]


@pytest.mark.parametrize("client", ["cuda12", "cuda13"])
def test_every_way_to_take_memory_ends_at_the_quota(
    container: Container, expect_two_of_eight: Callable[..., None], client: str
) -> None:
    """The quota is the total that both questions answer; each way in turn gets two of eight GiB and gives them back."""
    with container.talk(client, "bindings") as conversation:
        assert conversation.hear() == {"total": QUOTA}
        conversation.go_on()
        assert conversation.hear() == {"total": QUOTA, "free": QUOTA - CONTEXT}
        conversation.go_on()
        for way in WAYS:
            expect_two_of_eight(conversation, way, charged_when_taken=way != "managed")
    assert container.card.truth()[0]["used_bytes"] == 0


@pytest.mark.parametrize(
    ("client", "ways"),
    [("cuda12", ["default", "pool", "virtual"]), ("cuda13", ["default", "pool", "managed", "virtual"])],
)
def test_memory_resources_of_cuda_core_end_at_the_quota(
    container: Container, expect_two_of_eight: Callable[..., None], client: str, ways: list[str]
) -> None:
    """cuda-core's pools and virtual memory, and the pool of managed memory that CUDA 13 has."""
    with container.talk(client, "core") as conversation:
        assert conversation.hear()["name"] == "Tesla T4"
        conversation.go_on()
        for way in ways:
            expect_two_of_eight(conversation, way, given_back=way != "virtual")
