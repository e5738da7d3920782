"""Every command of the documents is run by a test, or needs a cluster and stands where the text says so."""

import ctypes.util
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Card
from tests.docs.commands import DOCUMENTS, OF_A_CLUSTER, ROOT, RUN_BY, Command, commands

MIB = 1 << 20


def _proof(command: Command) -> str:
    """The test that runs a command, and words that it contains; nothing where no line knows the command."""
    for known, (file, words) in RUN_BY.items():
        hit = re.fullmatch(known, command.text)
        if hit:
            path = ROOT / hit.expand(file)
            found = re.search(hit.expand(words), path.read_text(), re.MULTILINE)
            return str(path) if found else ""
    return ""


def _name(command: Command) -> str:
    return f"{command.document}:{command.text[:60]}"


@pytest.mark.parametrize("command", sorted(set(commands())), ids=_name)
def test_command_is_run_by_a_test_or_marked(command: Command) -> None:
    if OF_A_CLUSTER.match(command.text):
        assert "cluster" in command.part.lower() or command.document == "chart/README.md", command.text
    else:
        assert _proof(command), f"{command.document}: {command.text!r} is run by no test that RUN_BY knows"


def test_commands_are_found_in_blocks_and_in_the_text() -> None:
    found = {(command.document, command.text) for command in commands()}
    assert {
        ("README.md", "make demo"),
        ("README.md", "make demo KEEP=1"),
        ("README.md", "LD_PRELOAD=$PWD/build/libvgpu.so CUDA_DEVICE_MEMORY_LIMIT=2200m ./your-program"),
        ("chart/README.md", "helm test kai-resource-isolator -n kai-resource-isolator --logs"),
        ("csrc/README.md", "build/debug/core-fuzz texts|decisions|scribbles [SEED [ROUNDS]]"),
        ("csrc/simgpu/README.md", "build/simgpu/simgpu truth --state /tmp/card/state"),
        ("libsync/README.md", "python -m libsync --target DIR --uninstall"),
        ("e2e/cluster/README.md", "python -m pytest e2e/cluster -k quick"),
    } <= found


def test_every_command_that_is_known_is_still_shown() -> None:
    shown = [command.text for command in commands()]
    assert [known for known in RUN_BY if not any(re.fullmatch(known, text) for text in shown)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    """Links, and paths of the checkout within the text: who follows one must find it."""
    text = document.read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    paths = re.findall(r"`((?:tests|e2e|chart|webhook|monitor|libsync|csrc)/[\w./-]*\w)`", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [path for path in paths if not any((base / path).exists() for base in (ROOT, document.parent))]
    assert missing == []


def _run(command: list[str], env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def test_program_is_limited_by_hand(card: Card, tmp_path: Path) -> None:
    """README's line, with the probe as the program."""
    [text] = {command.text for command in commands() if command.text.startswith("LD_PRELOAD=")}
    region = card.env | {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region")}
    shown = _run(["sh", "-c", text.replace("./your-program", "build/vgpu-probe info --csv")], region)
    assert shown.endswith(", 2200 MiB\n")


def test_simulated_card_is_made_used_and_looked_at(tmp_path: Path) -> None:
    """The three lines of its document, in their order."""
    (tmp_path / "card").mkdir()
    create, use, truth = (
        command.text.replace("/tmp/card", str(tmp_path / "card")).replace("some-program", "build/vgpu-probe alloc 1GiB")
        for command in commands()
        if command.document == "csrc/simgpu/README.md"
    )
    _run(["sh", "-c", create])
    assert "granted  1 GiB" in _run(["sh", "-c", use])
    cards = json.loads(_run(["sh", "-c", truth]))["cards"]
    assert [one["used_bytes"] for one in cards] == [0, 0]


def test_unit_programs_list_their_cases() -> None:
    assert len(_run(["build/tests/core-region", "--list"]).splitlines()) > 10


def test_help_of_the_monitor_names_each_flag() -> None:
    assert "--kubelet-root" in _run([sys.executable, "-m", "monitor", "--help"])


@pytest.mark.parametrize("target", ["bench", "debug", "images", "e2e-cluster", "e2e-gpu"])
def test_targets_that_take_long_or_need_more_name_what_there_is(target: str) -> None:
    """Not run here: make says what it would do, and the modules are there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    told = _run(["make", "--dry-run", *(["-C", "csrc", "run-debug"] if target == "debug" else [target])], kept)
    modules = re.findall(r" -m ((?:tests|e2e)\.[\w.]+)", told)
    assert modules or target in ("debug", "e2e-cluster", "e2e-gpu")
    assert all(importlib.util.find_spec(module) for module in modules)
    assert target != "debug" or "core-fuzz" in told


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver: make e2e-gpu")
def test_run_for_a_card_says_what_it_leaves_out_and_why() -> None:
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "e2e/gpu", "--gpu"]
    told = _run(tests)
    assert "no NVIDIA driver on this machine" in told
    assert "passed" not in told
