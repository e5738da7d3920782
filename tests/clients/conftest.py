"""Real clients from the package registry, each in an environment of its own under build/clients/."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD, Card

MIB = 1 << 20
GIB = 1 << 30
QUOTA = 2200 * MIB
CONTEXT = 102 * MIB
PROGRAMS = Path(__file__).parent / "programs"

REQUIREMENTS = {
    "cuda12": ["cuda-bindings==12.9.10", "cuda-core==1.2.2"],
    "cuda13": ["cuda-bindings==13.4.4", "cuda-core==1.2.2"],
    # The compiler's next major version refuses the simulated card's compute capability.
    "numba": [
        "numba-cuda==0.30.4",
        "cuda-bindings==13.4.4",
        "nvidia-cuda-nvrtc<14",
        "nvidia-cuda-runtime<14",
        "nvidia-nvvm<14",
    ],
    "nvml11": ["nvidia-ml-py==11.525.150"],
    "nvml13": ["nvidia-ml-py==13.615.71"],
}


def environment(name: str) -> Path:
    """The client's Python. Made once: a file in it says what it was made of."""
    folder = BUILD / "clients" / name
    stamp = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[name])
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        install = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", *REQUIREMENTS[name]]
        subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
        stamp.write_text(wanted)
    return python


@dataclass
class Conversation:
    """A client's program that runs: it tells a fact and waits until it is told to go on."""

    process: subprocess.Popen[str]

    def hear(self) -> dict[str, Any]:
        """The next fact. The program waits after it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait(timeout=60)}"
        fact: dict[str, Any] = json.loads(line)
        return fact

    def go_on(self) -> None:
        """Let the program go on after its last fact."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@dataclass(frozen=True)
class Container:
    """Processes that share one quota of 2200 MiB on one card, given by hand."""

    card: Card
    region: Path

    @property
    def env(self) -> dict[str, str]:
        return self.card.env | {
            "LD_PRELOAD": str(BUILD / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT": "2200m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
        }

    @contextmanager
    def talk(self, client: str, program: str, *arguments: str) -> Iterator[Conversation]:
        """Run a program of programs/ by the client's Python; it must end well after the conversation."""
        command: list[str | Path] = [environment(client), PROGRAMS / f"{program}.py", *arguments]
        with subprocess.Popen(
            command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Conversation(process)
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()

    def data_bytes(self) -> int:
        """What the card really holds for programs, contexts and modules aside."""
        return sum(process["data_bytes"] for process in self.card.truth()[0]["processes"])


@pytest.fixture
def container(card: Card, tmp_path: Path) -> Container:
    """A quota of 2200 MiB on one T4."""
    return Container(card, tmp_path / "region")


@pytest.fixture
def expect_two_of_eight(container: Container) -> Callable[[Conversation, str], None]:
    """Check one way of taking memory: of eight times 1 GiB two are granted, which the card confirms, and given back."""

    def check(
        conversation: Conversation, way: str, *, charged_when_taken: bool = True, given_back: bool = True
    ) -> None:
        fact = conversation.hear()
        assert fact["way"] == way
        assert fact["granted"] == 2
        assert len(fact["refusals"]) == 1
        assert "OUT_OF_MEMORY" in fact["refusals"][0]
        if charged_when_taken:
            assert container.data_bytes() == 2 * GIB
        conversation.go_on()
        assert conversation.hear() == {"way": way, "granted": 0}
        assert container.data_bytes() == (0 if given_back else 2 * GIB)
        conversation.go_on()

    return check
