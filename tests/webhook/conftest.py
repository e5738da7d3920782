"""One server for the tests that only ask it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.server import Webhook, running


@pytest.fixture(scope="session")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder: Path = tmp_path_factory.mktemp("webhook")
    with running(folder, "--read-timeout", "2s") as webhook:
        yield webhook
