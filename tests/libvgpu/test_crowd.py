"""More processes than anybody planned for: real ones, all of them alive at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import BUILD

from .conftest import MIB, Ground
from .test_modules import big

Process = subprocess.Popen[bytes]
CONTEXT = 102 * MIB
SLOTS = 1024
NOT_PERMITTED = 800


@pytest.fixture
def crowded(make_ground: Callable[..., Ground]) -> Ground:
    """A card on which a thousand contexts have room."""
    ground = make_ground("Crowd:1048576:102")
    (ground.folder / "run").mkdir()
    return ground


# A pid namespace as a container has it: who is inside doesn't know the numbers by which NVML lists it.
INSIDE = 'exec 3<&0; i=0; while [ $i -lt "$0" ]; do "$@" <&3 & i=$((i + 1)); done; wait'


@contextlib.contextmanager
def crowd(ground: Ground, count: int, what: str, inside: bool = False) -> Iterator[tuple[list[Process], list[str]]]:
    """So many processes that begin at once, and what each said when it had what it wanted."""
    env = ground.env("1000g", {}) | {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(ground.folder / "run" / "region")}
    stay, leave = os.pipe()
    heard, said = os.pipe()
    command = [str(BUILD / "tests" / "bench-calls"), what]
    if inside:
        command = ["unshare", "--pid", "--fork", "sh", "-c", INSIDE, str(count), *command]
    processes = [subprocess.Popen(command, env=env, stdin=stay, stdout=said) for _ in range(1 if inside else count)]
    for end in (stay, said):
        os.close(end)
    try:
        with os.fdopen(heard) as lines:
            yield processes, [line.strip() for _, line in zip(range(count), lines, strict=False)]
    finally:
        os.close(leave)
        for process in processes:
            process.wait()


@pytest.mark.usefixtures("root")
def test_the_1025th_process_of_a_container_is_refused_until_one_has_gone(crowded: Ground) -> None:
    quota = {"limit": "1000g"}
    with crowd(crowded, SLOTS, "join") as (members, said):
        assert said == ["joined"] * SLOTS
        late = crowded.contained(quota)
        assert late.call("cuInit", 0) == NOT_PERMITTED
        assert "the region is full" in late.stderr()
        members[500].kill()
        members[500].wait()
        assert crowded.contained(quota).start(0) == [0, 0, 0]
        assert late.call("cuInit", 0) == NOT_PERMITTED, "the place that was free is taken"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("inside", [False, True], ids=["on the host", "in a container"])
def test_contexts_that_are_made_at_once_are_charged_what_each_takes(crowded: Ground, inside: bool) -> None:
    """More than fit into any list of fixed length."""
    with crowd(crowded, 300, "hold", inside) as (_, said):
        assert said == ["held"] * 300
        assert crowded.ledger(crowded.folder / "run" / "region")["used"] == crowded.held() == 300 * CONTEXT


@pytest.fixture
def inside() -> Iterator[list[str]]:
    """What puts a program into a pid namespace of the test."""
    keeper = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
    children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
    while not children.read_text():
        time.sleep(0.01)
    yield ["nsenter", f"--pid=/proc/{children.read_text().strip()}/ns/pid"]
    keeper.kill()
    keeper.wait()


@pytest.mark.usefixtures("root")
def test_who_began_at_once_in_a_container_is_told_apart_from_the_others(ground: Ground, inside: list[str]) -> None:
    """What they load afterwards, all at the same time, is charged as if each were alone."""
    workers = [ground.worker("10g", wrap=inside, device=None) for _ in range(6)]
    assert [worker.call("cuInit", 0) for worker in workers] == [0] * 6
    assert ground.held() == 0  # the card has their numbers on the host now, as a real one has from the beginning
    for step, mib in (("start", 0), ("module_load", 101), ("module_load", 202)):
        for worker in workers:
            worker.send(step, big(mib) if mib else 0)
        assert [worker.receive()[0] for worker in workers] == [0] * 6
        assert ground.ledger()["used"] == ground.held()
    assert ground.held() > 6 * (101 + 202) * MIB
