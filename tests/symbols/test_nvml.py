"""NVML's functions that say how much memory there is lead to the library; all others stay NVML's."""

from __future__ import annotations

from pathlib import Path

import pytest

from .routes import Routes

NVML = "libnvidia-ml.so.1"


@pytest.fixture
def nvml(build: Path) -> Path:
    return build / "simgpu" / NVML


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"])
@pytest.mark.parametrize("way", ["handle", "default", "next", "program", "dlmopen"])
def test_memory_is_answered_by_the_library(routes: Routes, nvml: Path, way: str, symbol: str) -> None:
    assert routes.where(way, symbol, nvml, bare=True) == NVML
    assert routes.where(way, symbol, nvml) == "libvgpu.so"


@pytest.mark.parametrize(
    "symbol", ["nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetHandleByUUID"]
)
def test_everything_else_is_answered_by_nvml(routes: Routes, nvml: Path, symbol: str) -> None:
    """The library calls some of these itself, and process lists are the bare driver's."""
    assert routes.where("handle", symbol, nvml) == NVML


def test_driver_functions_are_absent_where_only_nvml_is_loaded(routes: Routes, nvml: Path) -> None:
    assert routes.where("default", "cuMemAlloc_v2", nvml).startswith("absent: ")
    assert routes.where("handle", "cuMemAlloc_v2", nvml) == routes.where("handle", "cuMemAlloc_v2", nvml, bare=True)
