"""libsync's settings. The only module of this part that reads the environment: every flag has a twin there."""

import argparse
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from libsync.presets import PRESETS

ENVIRONMENT_PREFIX = "KRI_LIBSYNC_"
MODES = ("watch", "once", "check", "uninstall")
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
LONGEST_INTERVAL_SECONDS = 86400


@dataclass(frozen=True)
class Settings:
    """What one run of libsync does, and where."""

    target: Path  # the base directory, as libsync sees it
    library: Path  # a libvgpu.so, or a directory with <arch>/libvgpu.so
    mode: str  # one of MODES
    interval_seconds: float
    ready_file: Path | None
    selinux_type: str


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags, then environment, then defaults; a wrong one ends the program with status 2."""
    environment = os.environ if environment is None else environment
    parser = _parser()
    for action in parser._actions:
        name = ENVIRONMENT_PREFIX + action.dest.upper()
        value = environment.get(name, "")
        if action.dest == "help" or not value:  # an empty one counts as none: charts and shells leave such behind
            continue
        if action.nargs == 0:
            if value.lower() not in TRUE + FALSE:
                parser.error(f"{name}: {value!r} is neither true nor false")
            action.default = value.lower() in TRUE
        elif action.choices is not None and value not in action.choices:
            parser.error(f"{name}: {value!r} is none of {', '.join(map(str, action.choices))}")
        else:
            action.default = value
    given = parser.parse_args(arguments)
    modes = [mode for mode in MODES if getattr(given, mode, False)]
    if len(modes) > 1:
        parser.error(f"--{modes[0]} and --{modes[1]} can't be had together")
    if not 0 < given.interval_seconds <= LONGEST_INTERVAL_SECONDS:
        parser.error(f"--interval-seconds: must be more than 0 and at most {LONGEST_INTERVAL_SECONDS}")
    preset = PRESETS[given.preset]
    target = Path(given.target or preset.base)
    if not target.is_absolute():
        target = Path.cwd() / target
    return Settings(
        target=target,
        library=given.library,
        mode=modes[0] if modes else "watch",
        interval_seconds=given.interval_seconds,
        ready_file=given.ready_file,
        selinux_type=given.selinux_type or preset.selinux_type,
    )


def _parser() -> argparse.ArgumentParser:
    explained = "\n".join(
        f"  {name:<13} {preset.base}\n" + textwrap.indent(textwrap.fill(preset.why, 90), " " * 16)
        for name, preset in PRESETS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m libsync",
        description="Puts libvgpu.so and ld.so.preload on this node, proves them, and keeps them as they should be.",
        epilog=f"presets:\n{explained}\n\nEach flag can be given as {ENVIRONMENT_PREFIX}<FLAG> in the environment. "
        "Exit status: 0 done, 1 refused, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=PRESETS, default="ordinary", help="kind of node, see below (%(default)s)")
    parser.add_argument("--target", metavar="DIR", help="base directory (default: the preset's)")
    parser.add_argument(
        "--library",
        metavar="PATH",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "build",
        help="libvgpu.so, or a directory with <arch>/libvgpu.so or libvgpu.so in it (%(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="install or repair, then end")
    parser.add_argument("--check", action="store_true", help="change nothing; say whether all is as it should be")
    parser.add_argument("--uninstall", action="store_true", help="remove our files, unless a process uses the library")
    parser.add_argument(
        "--interval-seconds", metavar="N", type=float, default=60.0, help="time between two looks (%(default)s)"
    )
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        type=Path,
        help="exists while the last look found all well (for a probe)",
    )
    parser.add_argument("--selinux-type", metavar="TYPE", help="label where SELinux is on (default: the preset's)")
    return parser
