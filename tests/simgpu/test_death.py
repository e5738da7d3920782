"""A process that dies, however, gives everything back; one that waits behind it isn't held up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

from tests.conftest import Card
from tests.simgpu.conftest import CONTEXT, MIB, Out, Run


def test_killed_process_gives_its_memory_back(run: Run, card: Card) -> None:
    program = run()
    program.alloc(3000 * MIB)
    program.alloc(100)
    program.kill()
    assert card.truth()[0]["used_bytes"] == 0


def test_zombie_holds_nothing(run: Run, card: Card) -> None:
    program = run()
    program.alloc(3000 * MIB)
    program.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    assert card.truth()[0]["used_bytes"] == 0


def test_request_that_would_not_fit_takes_what_the_dead_held(run: Run) -> None:
    dead, program = run(), run()
    dead.alloc(15000 * MIB)
    dead.kill()
    program.alloc(15360 * MIB - CONTEXT)


def test_free_memory_counts_what_the_dead_held(run: Run) -> None:
    dead, program = run(), run()
    dead.alloc(1000 * MIB)
    dead.kill()
    time.sleep(0.01)
    assert program.number("cuMemGetInfo_v2", Out(), Out()) == 15360 * MIB - CONTEXT


def test_processes_killed_at_any_moment_leave_nothing_behind(run: Run, card: Card) -> None:
    """Killed in the middle of taking and freeing, again and again, beside one that lives and keeps its memory."""
    keeper, dice = run(), random.Random(3)  # noqa: S311
    keeper.alloc(8 * MIB)
    for _ in range(6):
        busy = [run() for _ in range(3)]
        for program in busy:
            assert program.process.stdin is not None
            program.process.stdin.write('["repeated","cuMemAlloc_v2",200000,[{"out":8},5000000]]\n')
            program.process.stdin.flush()
        time.sleep(dice.uniform(0.005, 0.05))
        for program in busy:
            program.kill()
        assert card.truth()[0]["used_bytes"] == CONTEXT + 8 * MIB
    keeper.alloc(8 * MIB)
    assert keeper.data() == 16 * MIB


def test_more_processes_than_a_small_table_would_hold(card: Card) -> None:
    """200 at once: each is told with what it holds, and all is given back at their end."""
    text = (
        "import ctypes,time\n"
        "d=ctypes.CDLL('libcuda.so.1'); c=ctypes.c_void_p(); p=ctypes.c_uint64()\n"
        "assert d.cuInit(0)==0\n"
        "print('up', flush=True); input()\n"
    )
    programs = [
        subprocess.Popen(
            ["python3", "-S", "-c", text], env=card.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(200)
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "up\n"
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    assert card.truth()[0]["processes"] == []


def test_pid_is_told_as_the_host_sees_it(run: Run, card: Card) -> None:
    """Also for a process in a pid namespace of its own."""
    text = (
        "import ctypes\n"
        "d=ctypes.CDLL('libcuda.so.1'); c=ctypes.c_void_p()\n"
        "assert d.cuInit(0)==0 and d.cuDevicePrimaryCtxRetain(ctypes.byref(c),0)==0\n"
        "print('up', flush=True); input()\n"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    with subprocess.Popen(
        [*unshare, "python3", "-S", "-c", text], env=card.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        [process] = card.truth()[0]["processes"]
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(program.pid)], check=True, capture_output=True, text=True
        ).stdout
        assert process["ns_pid"] == 1
        assert process["pid"] == int(children)
        program.kill()
