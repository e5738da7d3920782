"""Longer than `make test` has time for: pods come, take, die, are restarted, and the library is replaced under them."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.onebox.chain import Chain, load_manifest
from e2e.onebox.node import BUILD
from e2e.onebox.pod import Pod

MIB = 1 << 20
LIMIT_BYTES = 4147 * MIB
PROBE = "/usr/local/bin/vgpu-probe"
ROUNDS = 150
PODS = 3
STARTED_AT_ONCE = 16


class Churn:
    """Three pods on one card and what may happen to them, by one seed."""

    def __init__(self, chain: Chain, random_: random.Random, folder: Path) -> None:
        self._chain = chain
        self._random = random_
        self._folder = folder
        self._upgrades = 0
        self.pods = [self._new_pod(number) for number in range(PODS)]

    def step(self) -> None:
        """Let one thing happen."""
        actions = (self.take, self.take, self.take, self.kill, self.restart, self.upgrade, self.replace)
        self._random.choice(actions)(self._random.randrange(PODS))

    def take(self, index: int) -> None:
        """One more process that asks for much, and keeps what it gets."""
        size = self._random.choice(("64MiB", "512MiB", "1GiB", "2GiB", "3GiB"))
        self.pods[index]["main"].exec_start(PROBE, "hold", size, "256MiB", "1MiB")

    def kill(self, index: int) -> None:
        """Each holder of a pod dies at some moment, perhaps in the middle of its request."""
        for process in self._chain.processes(self.pods[index]):
            with suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)

    def restart(self, index: int) -> None:
        """The container dies with all it has, and starts again with the same ledger."""
        self.pods[index]["main"].restart()

    def upgrade(self, _: int) -> None:
        """Another hash, the same code: running processes keep the old file."""
        self._upgrades += 1
        library = self._folder / "libvgpu.so"
        library.write_bytes((BUILD / "libvgpu.so").read_bytes() + bytes(self._upgrades))
        self._chain.library = library
        self._chain.prepare_node()

    def replace(self, index: int) -> None:
        """The pod goes, another one comes."""
        self._chain.delete(self.pods[index])
        self.pods[index] = self._new_pod(index)

    def _new_pod(self, index: int) -> Pod:
        manifest = load_manifest(name=f"soak-{index}")
        manifest["spec"]["containers"][0] |= {"command": ["sleep", "infinity"], "args": []}
        return self._chain.run(manifest)


@pytest.fixture
def chain() -> Iterator[Chain]:
    """A node of its own: nobody else uses the card."""
    with Chain() as one:
        one.prepare_node()
        one.start_webhook()
        yield one


def test_promises_hold_through_all_of_it(chain: Chain, tmp_path: Path) -> None:
    """After each step no pod holds more than its share; at the end each can take all of its own, nothing is lost."""
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    print(f"SOAK_SEED={seed}")
    churn = Churn(chain, random.Random(seed), tmp_path)  # noqa: S311 — chance, not secrets
    for _ in range(ROUNDS):
        churn.step()
        assert max(chain.held_bytes(pod) for pod in churn.pods) <= LIMIT_BYTES
    for index, pod in enumerate(churn.pods):
        churn.restart(index)
        assert pod["main"].exec(PROBE, "verify", "--expect", "4147m").status == 0
    assert chain.node.truth()[0]["used_bytes"] == 0


def test_many_that_start_at_once_never_get_more_than_the_share(chain: Chain) -> None:
    """Of sixteen processes that ask for 512 MiB at the same moment some get it, together no more than the share."""
    churn = Churn(chain, random.Random(1), Path())  # noqa: S311 — chance, not secrets
    pod = churn.pods[0]
    for _ in range(5):
        holders = [pod["main"].exec_start(PROBE, "hold", "512MiB") for _ in range(STARTED_AT_ONCE)]
        holding = 0
        while sum(holder.poll() is not None for holder in holders) + holding < STARTED_AT_ONCE:
            processes = chain.processes(pod)
            holding = sum(process["data_bytes"] > 0 for process in processes)
            assert sum(process["used_bytes"] for process in processes) <= LIMIT_BYTES
        assert 0 < holding <= LIMIT_BYTES // (512 * MIB)
        pod["main"].restart()
    assert chain.node.truth()[0]["used_bytes"] == 0
