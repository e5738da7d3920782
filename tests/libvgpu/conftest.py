"""Workers under the library, by hand or as in a container that was set up for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD, Card

MIB = 1024 * 1024
GIB = 1024 * MIB
OOM = 2
WORKER = Path(__file__).with_name("worker.py")
# `make debug` builds another one, which traps at undefined behaviour.
LIBRARY = Path(os.environ.get("VGPU_TEST_LIBRARY", BUILD / "libvgpu.so"))

# A mount namespace in which /etc/vgpu and /run/vgpu are mounts, as in a container; the machine's own /etc stays.
CONTAINER = """
set -e
stage=$(mktemp -d) && mount -t tmpfs none "$stage" && mkdir "$stage/upper" "$stage/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$stage/upper,workdir=$stage/work" /etc
mkdir -p /etc/vgpu && mount --bind "$QUOTA" /etc/vgpu
mkdir "$stage/run" && mkdir "$stage/run/vgpu" && mount --bind "$stage/run" /run
[ -z "$REGION" ] || mount --bind "$REGION" /run/vgpu
exec "$@"
"""


class Worker:
    """A process that calls the driver; `worker.alloc(5)` calls `alloc` of worker.py over there."""

    def __init__(self, env: dict[str, str], wrap: list[str], log: Path) -> None:
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*wrap, sys.executable, "-S", str(WORKER)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def send(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.stderr()
        return json.loads(line)

    def ask(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self.ask(name, *arguments)

    @property
    def pid(self) -> int:
        return self.process.pid

    def stderr(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def read_ledger(region: Path, device: int = 0) -> dict[str, int]:
    """What a region says of one device; sizes in bytes."""
    raw = region.read_bytes()
    at = 256 + 256 * device + 64
    names = ("physical", "limit", "used", "unbelieved", "refusals", "refused_largest", "refused_last")
    values = {n: int.from_bytes(raw[at + 8 * i : at + 8 * i + 8], "little") for i, n in enumerate(names)}
    values["source"] = int.from_bytes(raw[at + 56 : at + 60], "little")
    return values


@dataclass
class Ground:
    """A card and the processes that a test starts on it."""

    card: Card
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    @property
    def region(self) -> Path:
        return self.folder / "region"

    def env(self, limit: str | None, more: dict[str, str]) -> dict[str, str]:
        env = self.card.env | {"LD_PRELOAD": str(LIBRARY)} | more
        env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(self.region)
        return env if limit is None else env | {"CUDA_DEVICE_MEMORY_LIMIT": limit}

    def _start(self, env: dict[str, str], wrap: list[str]) -> Worker:
        worker = Worker(env, wrap, self.folder / f"stderr-{len(self.workers)}")
        self.workers.append(worker)
        return worker

    def worker(
        self,
        limit: str | None = "2200m",
        *,
        device: int | None = 0,
        wrap: list[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Worker:
        """A worker under the library by hand, with a context on `device` (None: nothing called yet)."""
        worker = self._start(self.env(limit, env or {}), wrap or [])
        if device is not None:
            assert worker.start(device) == [0, 0, 0], worker.stderr()
        return worker

    def bare(self, *, device: int | None = 0) -> Worker:
        """A worker without the library."""
        worker = self._start(self.card.env, [])
        if device is not None:
            assert worker.start(device) == [0, 0, 0]
        return worker

    def contained(
        self,
        quota: dict[str, str],
        *,
        region: bool = True,
        wrap: list[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Worker:
        """A worker in a container of the one share that this ground has; nothing called yet."""
        folder = self.folder / "quota"
        folder.mkdir(exist_ok=True)
        for name, text in quota.items():
            (folder / name).write_text(text)
        ledger = self.folder / "run"
        ledger.mkdir(exist_ok=True)
        mounts = {"QUOTA": str(folder), "REGION": str(ledger) if region else ""}
        shell = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh"]
        preload = ["env", f"LD_PRELOAD={LIBRARY}"]
        return self._start(self.card.env | mounts | (env or {}), [*shell, *(wrap or []), *preload])

    def held(self, worker: Worker | None = None, card: int = 0) -> int:
        """Bytes that the card really holds, for one worker or in all."""
        truth = self.card.truth()[card]
        if worker is None:
            return int(truth["used_bytes"])
        return sum(int(p["used_bytes"]) for p in truth["processes"] if p["pid"] == worker.pid)

    def ledger(self, path: Path | None = None, device: int = 0) -> dict[str, int]:
        """What the region says of one device."""
        return read_ledger(path or self.region, device)


@pytest.fixture
def ground(card: Card, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(card, tmp_path)
    yield ground
    for worker in ground.workers:
        worker.end()


@pytest.fixture
def make_ground(make_card: Callable[..., Card], tmp_path: Path) -> Iterator[Callable[..., Ground]]:
    """Grounds with other cards than one T4."""
    made: list[Ground] = []

    def make(*cards: str) -> Ground:
        made.append(Ground(make_card(*cards), tmp_path))
        return made[-1]

    yield make
    for ground in made:
        for worker in ground.workers:
            worker.end()


@pytest.fixture
def root() -> None:
    """Containers need mount namespaces."""
    if os.geteuid() != 0:
        pytest.skip("mounting /etc/vgpu in a namespace needs root: run the tests as root to have this one")
