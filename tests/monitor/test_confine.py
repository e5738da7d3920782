"""The numbers of the reader's filter are the kernel's, on both architectures, and the filter judges as it should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from monitor import confine

BUILD = Path(__file__).resolve().parents[2] / "build"


@pytest.mark.parametrize("machine", sorted(confine.FORBIDDEN))
def test_numbers_are_the_kernels(machine: str) -> None:
    """By the headers that the C compiler of the build brings along."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu", "-E", "-dM", "-x", "c", "-"]
    caches = {f"ZIG_{kind}_CACHE_DIR": str(BUILD / ".zig") for kind in ("GLOBAL", "LOCAL")}
    done = subprocess.run(
        command, input="#include <asm/unistd.h>\n", capture_output=True, text=True, check=True, env=os.environ | caches
    )
    defined = dict(re.findall(r"#define (?:__NR_|__NR3264_)(\w+) (\d+)", done.stdout))
    numbers = {name: int(number) for name, number in defined.items()}
    assert confine.FORBIDDEN[machine] == {name: numbers[name] for name in confine.FORBIDDEN[machine]}
    opening = {numbers[name] for name in ("open", "openat") if name in numbers}
    assert set(confine.OPENING[machine]) == opening


def judge(machine: str, arch: int, number: int, *arguments: int) -> bool:
    """Run the filter as the kernel would; whether the call is allowed."""
    data = {confine.NUMBER_AT: number, confine.ARCH_AT: arch}
    data |= {confine.ARGUMENTS_AT + 8 * i: value for i, value in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6])}
    program = confine.call_filter(machine)
    at, word = 0, 0
    while True:
        operation, true, false, operand = program[at]
        at += 1
        if operation == confine.RETURN:
            return operand == confine.ALLOW
        if operation == confine.LOAD:
            word = data[operand]
        elif operation == confine.EQUAL:
            at += true if word == operand else false
        elif operation == confine.AT_LEAST:
            at += true if word >= operand else false
        elif operation == confine.ANY_BIT:
            at += true if word & operand else false
        else:
            raise AssertionError(operation)


@pytest.mark.parametrize("machine", sorted(confine.FORBIDDEN))
def test_the_filter_denies_what_it_names_and_nothing_else(machine: str) -> None:
    arch = confine.AUDIT_ARCH[machine]
    denied = set(confine.FORBIDDEN[machine].values())
    for number in range(600):
        assert judge(machine, arch, number) == (number not in denied), number
    for number, argument in confine.OPENING[machine].items():
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, os.O_PATH):
            assert judge(machine, arch, number, *([0] * argument), flags)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
            assert not judge(machine, arch, number, *([0] * argument), flags)


def test_other_numberings_of_system_calls_are_denied() -> None:
    read = 0
    assert not judge("x86_64", 0x40000003, read), "32-bit"
    assert not judge("x86_64", confine.AUDIT_ARCH["x86_64"], confine.X32 + read), "x32"
