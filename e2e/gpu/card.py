"""The card of this machine as NVML tells it, and programs under the library on it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from tests.conftest import BUILD
from tests.libvgpu.conftest import Worker, read_ledger

MIB = 1 << 20


def held(pid: int) -> int:
    """Bytes that the first card holds for a process; 0 where NVML doesn't list it."""
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    return sum(process.usedGpuMemory or 0 for process in listed if process.pid == pid)


@dataclass
class Quota:
    """One quota for all programs that are started under it; each has its own state in `folder`."""

    folder: Path
    limit_mib: int
    workers: list[Worker] = field(default_factory=list)

    @property
    def region(self) -> Path:
        """The file of the ledger."""
        return self.folder / "region"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program that is limited by hand."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_DEVICE", "LD_PRELOAD"))}
        return kept | {
            "LD_PRELOAD": str(BUILD / "libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT": f"{self.limit_mib}m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
        }

    def worker(self, *, start: bool = True, wrap: list[str] | None = None) -> Worker:
        """A process that calls the driver as it is told (tests/libvgpu/worker.py), with a context on the first card."""
        worker = Worker(self.env, wrap or [], self.folder / f"stderr-{len(self.workers)}")
        self.workers.append(worker)
        if start:
            assert worker.start() == [0, 0, 0], worker.stderr()
        return worker

    def charged(self) -> int:
        """Bytes that the region says are in use on the first card."""
        return read_ledger(self.region)["used"]
