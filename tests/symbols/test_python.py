"""An interpreter that loads libraries and starts children is as it was with the library preloaded and no driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import BUILD

PROGRAM = "import ctypes, subprocess, threading; print(subprocess.check_output(['/bin/echo', '42'], text=True), end='')"


@pytest.mark.parametrize("limit", [{}, {"CUDA_DEVICE_MEMORY_LIMIT": "2200m"}], ids=["unlimited", "limited"])
def test_python_runs_unchanged(limit: dict[str, str]) -> None:
    """Not a word on stderr, also where a limit is given."""
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(BUILD / "libvgpu.so"), **limit}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("42\n", "")
