"""The lists of what the CUDA runtimes 11, 12 and 13 ask cuGetProcAddress for, answered with the library as without."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

import pytest

from tests.conftest import Card

from . import hooklist, vendor
from .routes import Routes

STATUS_OF = {"VERSION": "none 2", "NOTFOUND": "none 1"}


@dataclass(frozen=True)
class Line:
    name: str
    version: int
    flags: int
    given: str


def _lines(runtime: str) -> list[Line]:
    found = []
    for line in (vendor.FACTS / f"cudart_getproc_{runtime}.txt").read_text().splitlines():
        match = re.fullmatch(r"(cu\w+) (\d+) flags=(\d) (\w+)", line)
        if match:
            found.append(Line(match[1], int(match[2]), int(match[3]), match[4]))
        else:
            assert line.strip() == "0 flags=0 ->", line
    return found


def _ask(routes: Routes, card: Card, lines: list[Line], preload: bool) -> list[str]:
    text = "".join(f"{line.name} {line.version} {line.flags}\n" for line in lines)
    environment = card.env | ({"LD_PRELOAD": str(routes.library)} if preload else {})
    done = subprocess.run(
        [routes.folder / "route_list"], input=text, env=environment, text=True, capture_output=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("runtime", ["cu11", "cu12", "cu13"])
def test_each_name_of_the_list_leads_to_the_hook_of_exactly_that_symbol(
    routes: Routes, card: Card, runtime: str
) -> None:
    hooked = hooklist.read().hooked
    lines = _lines(runtime)
    assert len(lines) > 300
    wrong = []
    for line, bare, got in zip(
        lines, _ask(routes, card, lines, preload=False), _ask(routes, card, lines, preload=True), strict=True
    ):
        expected = STATUS_OF.get(line.given) or bare
        if line.given in hooked and bare != "none 1":
            expected = f"libvgpu.so {line.given}"
        if got != expected:
            wrong.append((line, bare, got))
    assert wrong == []


def test_questions_that_name_nothing_are_the_drivers(routes: Routes, card: Card) -> None:
    """The first name asked for can be empty; a name that nobody has; a version older than the function."""
    lines = [Line("-", 0, 0, ""), Line("cuNoSuchFunction", 12000, 0, ""), Line("cuMemAllocAsync", 2000, 0, "")]
    assert _ask(routes, card, lines, preload=True) == _ask(routes, card, lines, preload=False)
