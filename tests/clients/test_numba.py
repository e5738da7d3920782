"""numba-cuda: its arrays end at the quota, and a kernel that it compiles runs under the library."""

from __future__ import annotations

from collections.abc import Callable

from tests.clients.conftest import CONTEXT, QUOTA, Container


def test_arrays_end_at_the_quota_and_kernels_run(
    container: Container, expect_two_of_eight: Callable[..., None]
) -> None:
    """The card counts the launch; the code of the kernel is charged as a module."""
    with container.talk("numba", "numba_arrays") as conversation:
        assert conversation.hear() == {"total": QUOTA, "free": QUOTA - CONTEXT}
        conversation.go_on()
        expect_two_of_eight(conversation, "array")
        assert conversation.hear() == {"launched": True}
        (process,) = container.card.truth()[0]["processes"]
        assert process["module_bytes"] > 0
        conversation.go_on()
