"""Runs the C unit tests of the region and of the hash table, one test for each of their cases."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.conftest import BUILD, ROOT


def cases() -> list[tuple[str, str]]:
    """(program, case), read from the sources so that collecting needs no build."""
    found = []
    for program in ("region", "steps", "table"):
        source = (ROOT / "csrc" / "tests" / f"core_{program}.c").read_text(encoding="utf-8")
        found += [(program, case) for case in re.findall(r"^        CASE\((\w+)\)", source, re.MULTILINE)]
    return found


@pytest.mark.parametrize(("program", "case"), cases())
def test_core(program: str, case: str) -> None:
    done = subprocess.run(
        [BUILD / "tests" / f"core-{program}", case], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
