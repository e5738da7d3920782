"""What the vendor's headers declare, read out of the preprocessor's output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FACTS = Path(__file__).parent / "facts"


def include_folders() -> dict[str, Path]:
    """Include folders of the two CUDA headers' packages, by the CUDA version that they are of."""
    spec = find_spec("nvidia")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    roots = [Path(location) for location in spec.submodule_search_locations]
    found = {
        version: root / folder / "include"
        for version, folder in (("12", "cuda_runtime"), ("13", "cu13"))
        for root in roots
        if (root / folder / "include" / "cuda.h").exists()
    }
    assert set(found) == {"12", "13"}, "nvidia-cuda-runtime-cu12 and nvidia-cuda-runtime are development dependencies"
    return found


@dataclass(frozen=True)
class Headers:
    """Functions with their parameters as text, and the versions of the typedefs for cuGetProcAddress."""

    functions: dict[str, str]
    versions: dict[str, set[int]]
    """Base name, with `_ptsz` or `_ptds` where the typedef has it, to CUDA versions."""


def _preprocess(folder: Path, header: str, *flags: str) -> str:
    command = [sys.executable, "-m", "ziglang", "cc", "-E", "-P", *flags, f"-I{folder}", "-x", "c", "-"]
    done = subprocess.run(
        command, input=f"#include <{header}>\n", env=os.environ, text=True, capture_output=True, check=True
    )
    return " ".join(done.stdout.split())


def cuda(folder: Path) -> Headers:
    """cuda.h with its old and per-thread forms, and cudaTypedefs.h."""
    text = _preprocess(folder, "cudaTypedefs.h", "-include", "cuda.h", "-D__CUDA_API_VERSION_INTERNAL")
    functions = {m[1]: m[2] for m in re.finditer(r"CUresult (cu\w+) ?\(([^;{]*?)\) ?;", text)}
    versions: dict[str, set[int]] = {}
    for m in re.finditer(r"\( ?\* ?PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", text):
        versions.setdefault(m[1] + (m[3] or ""), set()).add(int(m[2]))
    return Headers(functions, versions)


def nvml(folder: Path) -> dict[str, str]:
    """nvml.h's functions."""
    text = _preprocess(folder, "nvml.h")
    return {m[1]: m[2] for m in re.finditer(r"nvmlReturn_t (nvml\w+) ?\(([^;{]*?)\) ?;", text)}


def exports(name: str) -> list[str]:
    """Names that a real library exports, from the facts' list."""
    return (FACTS / name).read_text().split()
