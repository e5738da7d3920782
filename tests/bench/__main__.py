"""Times calls with and without the library on the same simulated card, in turns, and prints what it adds.

Numbers of a busy machine are noisy: a run gives the median of many short batches, each figure is the least of several
runs, and what counts is the difference between two that were measured in turns. JSON goes to
build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent.parent / "build"
CALLS, SPAWN, EMPTY = (BUILD / "tests" / name for name in ("bench-calls", "bench-spawn", "bench-empty.so"))
LIBRARY = BUILD / "libvgpu.so"


@dataclass(frozen=True)
class Measure:
    """One line of the table: what is run how often, the most it may add, and HAMi-core's figure for scale."""

    name: str
    run: str
    count: int
    unit: str
    most: float | None  # that the library may add; for `whole` the most in all
    hami: float | None  # added by HAMi-core on a simulated driver, same meaning
    whole: bool = False  # the library answers alone, without the driver: its figure is the whole call
    others: int = 0  # idle processes in the same region
    rivals: int = 0  # processes that do the same at the same time


MEASURES = (
    Measure("alloc + free", "pair", 200000, "ns", 60, 750),
    Measure("alloc + free, 8 processes in the region", "pair", 200000, "ns", 60 * 1.3, None, others=7),
    Measure("alloc + free, 101 processes in the region", "pair", 200000, "ns", 60 * 1.3, 1840, others=100),
    Measure("alloc + free, against another that does the same", "pair", 200000, "ns", None, None, rivals=1),
    Measure("alloc + free of 4 KiB", "small", 200000, "ns", None, None),
    Measure("free, 10 live, last first", "lifo", 10, "ns", None, None),
    Measure("free, 50,000 live, last first", "lifo", 50000, "ns", 60 * 1.3, 122000),
    Measure("free, 50,000 live, random order", "random", 50000, "ns", 60 * 1.3, None),
    Measure("refusal", "refuse", 100000, "ns", 300, 1100000, whole=True),
    Measure("cuMemGetInfo", "info", 200000, "ns", 100, 1150),
    Measure("kernel launch", "launch", 1000000, "ns", 5, 26),
    Measure("look-up by cuGetProcAddress", "lookup", 200000, "ns", None, None),
)


@dataclass(frozen=True)
class Result:
    """Least of all runs; `added` is what the library adds, or its whole figure where it answers alone."""

    name: str
    unit: str
    bare: float
    library: float
    added: float
    most: float | None
    hami: float | None


class Bench:
    """A card, a region, and the two environments that are compared."""

    def __init__(self, folder: Path) -> None:
        state = folder / "state"
        subprocess.run(
            [BUILD / "simgpu" / "simgpu", "create", "--state", state, "--card", "Bench:4194304:102"], check=True
        )
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "LD_", "SIMGPU_"))}
        self.bare = clean | {"SIMGPU_STATE": str(state), "LD_LIBRARY_PATH": str(BUILD / "simgpu")}
        self.library = self.bare | {
            "LD_PRELOAD": str(LIBRARY),
            "CUDA_DEVICE_MEMORY_LIMIT": "4000g",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "region"),
        }

    @contextmanager
    def company(self, env: dict[str, str], measure: Measure) -> Iterator[None]:
        """Other processes on the card, idle or busy, as long as this lasts."""
        idle: list[list[str | Path]] = [[CALLS, "hold"]] * measure.others
        busy: list[list[str | Path]] = [[CALLS, measure.run, str(measure.count * 1000)]] * measure.rivals
        started = [
            subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for command in [*idle, *busy]
        ]
        try:
            for process in started[: measure.others]:
                assert process.stdout is not None
                process.stdout.readline()
            yield
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.communicate()

    def once(self, env: dict[str, str], measure: Measure) -> float:
        command: list[str | Path] = [CALLS, measure.run, str(measure.count)]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        return float(done.stdout)

    def run(self, measure: Measure, rounds: int) -> Result:
        bare, library = [], []
        if measure.others == 0 and measure.rivals == 0:
            for _ in range(rounds):
                bare.append(self.once(self.bare, measure))
                library.append(self.once(self.library, measure))
        else:
            for env, figures in ((self.bare, bare), (self.library, library)):
                with self.company(env, measure):
                    figures += [self.once(env, measure) for _ in range(rounds)]
        # Against a rival the usual case counts, not the luckiest.
        best = statistics.median if measure.rivals else min
        least, with_library = best(bare), best(library)
        added = with_library if measure.whole else with_library - least
        return Result(measure.name, measure.unit, least, with_library, added, measure.most, measure.hami)

    def spawn(self, how: str, count: int, command: list[str], env: dict[str, str]) -> float:
        done = subprocess.run([SPAWN, how, str(count), *command], env=env, check=True, capture_output=True, text=True)
        return float(done.stdout)

    def run_exec(self, rounds: int) -> Result:
        empty = self.bare | {"LD_PRELOAD": str(EMPTY)}
        bare, library = [], []
        # On one processor: whether the child gets another makes more of a difference than the library.
        processors = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(processors)})
        for _ in range(2 * rounds):
            bare.append(self.spawn("one", 300, ["/bin/true"], empty))
            library.append(self.spawn("one", 300, ["/bin/true"], self.library))
        os.sched_setaffinity(0, processors)
        least, with_library = min(bare), min(library)
        return Result("exec of /bin/true", "us", least, with_library, with_library - least, 25, 84)

    def run_start(self, rounds: int) -> Result:
        bare, library = [], []
        for _ in range(rounds):
            bare.append(self.spawn("together", 512, [str(CALLS), "init"], self.bare))
            library.append(self.spawn("together", 512, [str(CALLS), "init"], self.library))
        least, with_library = min(bare), min(library)
        return Result("512 processes through cuInit", "ms", least, with_library, with_library - least, 200, 1700)


def table(results: list[Result]) -> str:
    """For people: one line a measurement."""
    lines = [f"{'':52}{'bare':>11}{'library':>11}{'adds':>11}{'at most':>11}{'HAMi-core':>12}"]
    for r in results:
        most = f"{r.most:,.0f}" if r.most is not None else "-"
        hami = f"{r.hami:,.0f}" if r.hami is not None else "-"
        mark = "" if r.most is None or r.added <= r.most else "  over"
        figures = f"{r.bare:>11,.1f}{r.library:>11,.1f}{r.added:>11,.1f}{most:>11}{hami:>12}"
        lines.append(f"{r.name + ' [' + r.unit + ']':52}{figures}{mark}")
    return "\n".join(lines)


def main() -> None:
    """Run everything; print the table, write build/bench.json."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each measurement; the least counts")
    parser.add_argument("--only", help="measurements whose name contains this")
    options = parser.parse_args()
    wanted = options.only or ""
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        results += [bench.run(m, options.rounds) for m in MEASURES if wanted in m.name]
        if wanted in "exec of /bin/true":
            results.append(bench.run_exec(options.rounds))
        if wanted in "512 processes through cuInit":
            results.append(bench.run_start(options.rounds))
        region = Path(folder) / "region"
        size = region.stat().st_size if region.exists() else 0
    print(table(results))
    print(f"region: {size:,} bytes for 1,024 processes and 16 devices (at most 1,048,576; HAMi-core 2,008,952)")
    print("HAMi-core: measured on another simulated driver; its refusal on a real card")
    report = {"region_bytes": size, "results": [asdict(r) for r in results]}
    (BUILD / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
