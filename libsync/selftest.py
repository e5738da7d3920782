"""Proves a library by loading it, in a process of its own: whatever it does there, libsync lives on."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from libsync.errors import RefusalError

_TIMEOUT_SECONDS = 20
# Loaded the way the dynamic linker loads it for a program that starts: all symbols resolved at once, globally.
_PROGRAM = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_GLOBAL)
library.vgpu_version.restype = ctypes.c_char_p
print(json.dumps({"version": library.vgpu_version().decode(), "abi": library.vgpu_abi()}))
"""


@dataclass(frozen=True)
class Identity:
    """What a library says about itself."""

    version: str
    abi: int  # number of the region's layout


def ask_identity(library: Path) -> Identity:
    """Load the library in a child process and ask it who it is; RefusalError if it can't be loaded or misbehaves."""
    try:
        child = subprocess.run(  # an empty environment: no setting of ours or the node's changes the outcome
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(library)],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RefusalError(f"self-test: {library} didn't answer within {_TIMEOUT_SECONDS} s") from None
    if child.returncode < 0:
        raise RefusalError(f"self-test: {library} kills the process that loads it ({_signal_name(-child.returncode)})")
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise RefusalError(f"self-test: {library} can't be used: {lines[-1] if lines else 'no reason given'}")
    try:
        answer = json.loads(child.stdout)
        return Identity(version=str(answer["version"]), abi=int(answer["abi"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RefusalError(f"self-test: {library} gave no usable answer: {child.stdout[:200]!r}") from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
