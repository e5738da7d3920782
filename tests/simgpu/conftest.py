"""Programs on a simulated card, and the card's truth about them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD, Card

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 2 * MIB
CONTEXT = 102 * MIB

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
CONTEXT_IS_DESTROYED = 709
NOT_SUPPORTED = 801

PROGRAM = Path(__file__).with_name("program.py")


def simgpu(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of the `simgpu` program."""
    line = [str(BUILD / "simgpu" / "simgpu"), command, *map(str, arguments)]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)


@dataclass(frozen=True)
class Out:
    """Room for something that the call fills in."""

    size: int = 8


@dataclass(frozen=True)
class ByValue:
    """A struct that is passed by value."""

    data: bytes


def encoded(argument: Any) -> Any:
    if isinstance(argument, Out):
        return {"out": argument.size}
    if isinstance(argument, ByValue):
        return {"value": argument.data.hex()}
    if isinstance(argument, bytes):
        return {"bytes": argument.hex()}
    return argument


class Program:
    """A process that uses the card."""

    def __init__(self, card: Card, **env: str) -> None:
        self.card = card
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(PROGRAM)],
            env=card.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, action: str, *parameters: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([action, *parameters]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the program died"
        return json.loads(line)

    def code(self, name: str, *arguments: Any) -> int:
        """The code that the call answers."""
        return int(self.ask("call", name, [encoded(a) for a in arguments])[0])

    def outputs(self, name: str, *arguments: Any) -> list[bytes]:
        """What a call that succeeds fills in."""
        code, filled = self.ask("call", name, [encoded(a) for a in arguments])
        assert code == SUCCESS, f"{name}: {code}"
        return [bytes.fromhex(text) for text in filled]

    def elsewhere(self, context: int, name: str, *arguments: Any, mode: int = 0) -> int:
        """The code that the call answers in another thread, of that capture mode."""
        before = [
            ["cuCtxSetCurrent", [context]],
            ["cuThreadExchangeStreamCaptureMode", [encoded(bytes([mode, 0, 0, 0]))]],
        ]
        answers = self.ask("elsewhere", [*before, [name, [encoded(a) for a in arguments]]])
        return int(answers[-1][0])

    def number(self, name: str, *arguments: Any) -> int:
        """The first thing that a call fills in, as a number."""
        return int.from_bytes(self.outputs(name, *arguments)[0], "little")

    def start(self, device: int = 0) -> Program:
        """Initialises the driver and makes the device's primary context current."""
        self.outputs("cuInit", 0)
        context = self.number("cuDevicePrimaryCtxRetain", Out(), device)
        self.outputs("cuCtxSetCurrent", context)
        return self

    def alloc(self, size: int) -> int:
        return self.number("cuMemAlloc_v2", Out(), size)

    def free(self, pointer: int) -> None:
        self.outputs("cuMemFree_v2", pointer)

    def held(self, card: int = 0) -> dict[str, Any]:
        """What the card says about this process; all zero if it holds nothing."""
        zero = dict.fromkeys(
            ("used_bytes", "context_bytes", "module_bytes", "data_bytes", "contexts", "allocations", "launches"), 0
        )
        for process in self.card.truth()[card]["processes"]:
            if process["ns_pid"] == self.pid:
                return dict(process)
        return zero

    def data(self, card: int = 0) -> int:
        return int(self.held(card)["data_bytes"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


Run = Callable[..., Program]


@pytest.fixture
def run(card: Card) -> Iterator[Run]:
    """Start programs: `run()` one that holds a context on the T4, `run(started=False)` one that did nothing yet."""
    programs: list[Program] = []

    def make(*, started: bool = True, on: Card = card, **env: str) -> Program:
        program = Program(on, **env)
        programs.append(program)
        return program.start() if started else program

    yield make
    for program in programs:
        program.close()
