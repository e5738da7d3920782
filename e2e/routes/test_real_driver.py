"""The look-ups of a real driver's library, for every function, version and flag, with the library and without."""

from pathlib import Path

import pytest

from e2e.routes import driver
from tests.symbols import hooklist
from tests.symbols.routes import Routes

BUILD = Path(__file__).resolve().parents[2] / "build"
VERSIONS = [
    2000, 2010, 2020, 3000, 3010, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 8000, 9000, 9020, 10000, 10020, 11000,
    11010, 11020, 11030, 11040, 11060, 11070, 12000, 12010, 12020, 12030, 12040, 12050, 12080, 13000, 13050, 14000,
]  # fmt: skip
FLAGS = [0, 1, 2]


@pytest.fixture(scope="module")
def folder() -> Path:
    return driver.provide()


@pytest.fixture(scope="module")
def native() -> Routes:
    """The programs on this machine: the driver's library is the one thing that is foreign."""
    return Routes(BUILD / "tests/routes/x86_64", BUILD / "libvgpu.so")


def test_every_answer_of_cugetprocaddress_is_the_same_function(native: Routes, folder: Path) -> None:
    """Hooked or not, the symbol is the one that the driver gave; absent and too old stay absent and too old."""
    hooks = hooklist.read()
    bases = {hook.base for hook in hooks.driver} | {name for name in hooks.passed_names if name.startswith("cu")}
    questions = [f"{base} {version} {flags}" for base in sorted(bases) for version in VERSIONS for flags in FLAGS]
    text = "\n".join(questions) + "\n"
    environment = {"LD_LIBRARY_PATH": str(folder)}
    bare = native.run("route_list", environment=environment, text=text).splitlines()
    ours = native.run("route_list", environment=environment, text=text, preload=(native.library,)).splitlines()
    assert sum(line.startswith("libcuda.so.1 cu") for line in bare) > 20_000
    wrong = []
    for question, answered, got in zip(questions, bare, ours, strict=True):
        found, symbol = answered.split()
        expected = f"libvgpu.so {symbol}" if found != "none" and symbol in hooks.hooked else answered
        if got != expected:
            wrong.append((question, answered, got))
    assert wrong == []


@pytest.mark.parametrize("way", ["handle", "default", "next", "program", "dlmopen"])
def test_lookup_by_name_in_the_real_libraries(native: Routes, folder: Path, way: str) -> None:
    cuda, nvml = folder / "libcuda.so.1", folder / "libnvidia-ml.so.1"
    for symbol in ("cuMemAlloc_v2", "cuMemAlloc", "cuGetProcAddress_v2"):
        assert native.where(way, symbol, cuda) == "libvgpu.so"
    assert native.where(way, "cuGetExportTable", cuda) == "libcuda.so.1"
    assert native.where(way, "nvmlDeviceGetMemoryInfo_v2", nvml) == "libvgpu.so"
    assert native.where(way, "nvmlInit_v2", nvml) == "libnvidia-ml.so.1"


def test_function_newer_than_the_real_driver_is_absent(native: Routes, folder: Path) -> None:
    bare = native.where("handle", "cuCtxCreate_v4", folder / "libcuda.so.1", bare=True)
    assert bare.startswith("absent: ")
    assert native.where("handle", "cuCtxCreate_v4", folder / "libcuda.so.1") == bare
