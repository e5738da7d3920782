# mypy: ignore-errors
# The version of nvidia-ml-py under test is only in the client's environment.
"""nvidia-ml-py: what it says of memory and of processes."""

from __future__ import annotations

import pynvml
from dialogue import tell


def main():
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    tell(
        count=pynvml.nvmlDeviceGetCount(),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        first={"total": first.total, "used": first.used, "free": first.free},
        second={"total": second.total, "used": second.used, "free": second.free},
        processes={p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)},
    )
    pynvml.nvmlShutdown()


main()
