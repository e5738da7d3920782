"""Root folders of other systems, made by debootstrap once and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests import debian
from tests.debian import UnavailableError

EMULATOR = "qemu-aarch64-static"


def cache() -> Path:
    """Folder for what is fetched once."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kai-resource-isolator" / "routes"


def require(program: str, package: str) -> None:
    """Say which package is missing where a program is."""
    if not shutil.which(program):
        raise UnavailableError(f"the route tests need {program}: apt-get install {package}")


def provide(suite: str, arch: str) -> Path:
    """The root folder of a Debian release for `amd64` or `arm64`; unpacked, not configured: that is enough to run."""
    root = cache() / f"{suite}-{arch}"
    if root.exists():
        return root
    if os.geteuid() != 0:
        raise UnavailableError(f"debootstrap must be root: run the route tests once as root, which fills {cache()}")
    require("debootstrap", "debootstrap")
    partial = root.with_name(f"{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["debootstrap", "--foreign", "--variant=minbase", f"--arch={arch}", suite, partial, debian.mirror()],
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-5:] + done.stderr.splitlines()[-5:])
        raise UnavailableError(f"debootstrap of {suite} for {arch} failed:\n{last}")
    shutil.rmtree(partial / "var" / "cache" / "apt")
    partial.rename(root)
    return root


def install(root: Path, programs: Path, library: Path) -> tuple[Path, Path]:
    """Put the route programs and the library into the root folder; where both are, as seen from inside."""
    inside = Path("/opt/routes")
    outside = root / inside.relative_to("/")
    shutil.rmtree(outside, ignore_errors=True)
    shutil.copytree(programs, outside / "programs")
    shutil.copy2(library, outside / library.name)
    return inside / "programs", inside / library.name


def chrooted(root: Path, command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Start a program with `root` as its /."""
    require("chroot", "coreutils")
    inner = [f"{name}={value}" for name, value in environment.items()]
    return ["chroot", str(root), "/usr/bin/env", "-i", *inner, *command], {"PATH": os.environ["PATH"]}


def emulated(root: Path, command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Start an aarch64 program under qemu-user, which looks files up below `root` first."""
    require(EMULATOR, "qemu-user-static")
    variables = [part for name, value in environment.items() if name != "PATH" for part in ("-E", f"{name}={value}")]
    program, *arguments = command
    outside = str(root / Path(program).relative_to("/"))
    return [EMULATOR, "-L", str(root), *variables, outside, *arguments], {"PATH": os.defpath}
