"""Processes of one container come, take what they can get by every way, and many are killed while they do it."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.probe.conftest import MIB, PROBE, Probe

QUOTA = 4147 * MIB
CONTEXT = 102 * MIB
PROCESSES = 400
AT_ONCE = 6


def start(probe: Probe, chance: random.Random) -> subprocess.Popen[bytes]:
    size, count = chance.choice(["3MiB", "70MiB", "300MiB", "1GiB", "100k"]), str(chance.randrange(1, 60))
    api, seconds = chance.choice(["alloc", "async", "vmm", "managed"]), f"{chance.random() * 0.3:.2f}"
    command: list[str | Path] = [PROBE, "hold", size, "--count", count, "--api", api, "--seconds", seconds]
    return subprocess.Popen(command, env=probe.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_card_never_holds_more_than_the_quota_and_nothing_is_left_behind(under: Callable[[str], Probe]) -> None:
    """The card is looked at all the while. When the last one is gone, the whole quota can be taken."""
    probe = under("4147m")
    chance = random.Random(1)  # noqa: S311 - the same processes in every run
    running: list[subprocess.Popen[bytes]] = []
    started = 0
    seen = set()
    while started < PROCESSES or running:
        while started < PROCESSES and len(running) < AT_ONCE:
            running.append(start(probe, chance))
            started += 1
        seen.add(probe.card.truth()[0]["used_bytes"])
        if chance.random() < 0.3:
            chance.choice(running).send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM]))
        running = [process for process in running if process.poll() is None]
    # One at a time may have a context that turns out not to fit: how much it takes is known once it is there.
    assert max(seen) <= QUOTA + CONTEXT
    assert max(seen) > QUOTA / 2, "the processes hardly met: this run shows nothing"
    assert probe.json("verify")["verdict"] == "kept"
