"""The commands that the documents show, and for each the test that runs it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("chart", "csrc", "e2e", "libsync", "monitor", "webhook")
DOCUMENTS = sorted([ROOT / "README.md", *(path for part in PARTS for path in (ROOT / part).rglob("*.md"))])
# What a command begins with, after variables of its own.
_NAMES = r"make|python3?|kubectl|helm|docker|curl|libsync|vgpu-probe|\./your-program|some-program|build/\S+"
PROGRAM = rf"(?:[A-Z_]+=\S+ )*(?:{_NAMES}) "
# These speak to a cluster, or make images for one.
OF_A_CLUSTER = re.compile(r"kubectl |helm |docker |curl http://127\.0\.0\.1:9394/|make e2e-cluster")


@dataclass(frozen=True, order=True)
class Command:
    """A command as a document shows it, and the part of the document (from heading to heading) in which it stands."""

    document: str
    text: str
    part: str


# A regular expression for the whole command: the file that runs it, and the words there by which that shows.
HERE = "tests/docs/test_commands.py"
RUN_BY = {
    r"make (lint|test|e2e)": (".ci/run", r"^\g<0>$"),
    r"make build": ("Makefile", r"^test: build$"),
    r"make demo": ("tests/onebox/test_demo.py", r"e2e\.onebox\.demo"),
    r"make demo KEEP=1": ("tests/onebox/test_demo.py", r"--keep"),
    r"make images": ("e2e/cluster/conftest.py", r"build_all\("),
    r"make e2e-gpu": (HERE, r"def test_run_for_a_card_says"),
    r"make (bench|debug)|build/debug/core-fuzz .*": (HERE, r"def test_targets_that_take_long"),
    r"LD_PRELOAD=\S+ CUDA_DEVICE_MEMORY_LIMIT=\S+ \./your-program": (HERE, r"def test_program_is_limited_by_hand"),
    r"build/simgpu/simgpu (create|truth) .*|SIMGPU_STATE=.* some-program": (HERE, r"def test_simulated_card"),
    r"build/simgpu/simgpu (--help|truth)": ("tests/simgpu/test_commands.py", r"simgpu"),
    r"build/vgpu-probe --help": ("tests/probe/test_command_line.py", r"PROBE, \"--help\""),
    r"vgpu-probe (info|verify)": ("tests/probe/test_\\g<1>.py", r"\"\g<1>\""),
    r"build/tests/core-region --list": (HERE, r"def test_unit_programs_list"),
    r"python3 chart/files/verify\.py .*": ("tests/chart/test_verify.py", r"chart/files/verify\.py"),
    r"python -m tests\.chart\.values --write": ("tests/chart/test_values.py", r"with_table\("),
    r"python -m tests\.symbols\.hooklist": ("tests/symbols/test_list.py", r"hooklist\.with_list\("),
    r"python -m tests\.monitor\.bench": (HERE, r"def test_targets_that_take_long"),
    r"(?:python -m )?libsync(?: --target DIR)? (--once|--check|--uninstall)": (
        "tests/libsync/test_interruption.py",
        r"\"\g<1>\"",
    ),
    r"python -m libsync --target DIR": ("tests/libsync/test_watch.py", r"libsync"),
    r"python -m webhook --listen .*": ("tests/webhook/server.py", r"\"--listen\""),
    r"python -m webhook --help": ("tests/webhook/test_life.py", r"start\(\"--help\"\)"),
    r"python -m monitor(?: --listen .*)?": ("tests/monitor/test_program.py", r"\"monitor\", \"--listen\""),
    r"python -m monitor --help": (HERE, r"def test_help_of_the_monitor"),
    r"python -m monitor top.*": ("tests/monitor/test_top.py", r"top\.main\(\[\"--once\"\]\)"),
    r"python -m e2e\.monitor": ("e2e/monitor/test_prometheus.py", r"dashboard"),
    r"python -m e2e\.cluster build": ("e2e/conftest.py", r"programs\.provide\("),
    r"python -m e2e\.cluster shell(?: --node)?": ("e2e/cluster/test_harness.py", r"Cluster\("),
    r"python -m pytest e2e/cluster -k quick": ("e2e/cluster/test_share.py", r"def test_quick_start"),
}


def commands() -> Iterator[Command]:
    """Every command of every document: lines of shell blocks and of indented ones, and commands within the text."""
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        for part in re.split(r"^(?=#{1,6} [A-Z])", path.read_text(), flags=re.MULTILINE):
            for text in _in(part):
                yield Command(name, text, part)


def _in(part: str) -> Iterator[str]:
    fenced = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    prose = fenced.sub("", part)
    blocks = [block for kind, block in fenced.findall(part) if kind == "sh"]
    indented = re.findall(r"^    (\S.*)$", prose, re.MULTILINE)
    for line in (*"\n".join(blocks).splitlines(), *indented):
        # What a command does stands behind it: after a #, or after at least two blanks.
        text = re.split(r"\s+# |^# |\s{2,}(?=\S)", line.strip())[0]
        if re.match(PROGRAM, f"{text} "):
            yield text
    for quoted in re.findall(r"`([^`]+)`", prose):
        text = " ".join(quoted.split())
        if re.match(PROGRAM, text):
            yield text
