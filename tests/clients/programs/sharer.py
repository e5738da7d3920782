# mypy: ignore-errors
# cuda-bindings is only in the client's environment.
"""A process that takes memory and shares it with others, on orders that come one a line; each is answered."""

from __future__ import annotations

import ctypes
import json
import sys

from cuda.bindings import driver

HANDLE_BYTES = 64


def main():
    for function, *arguments in ((driver.cuInit, 0), (driver.cuDevicePrimaryCtxRetain, 0)):
        code, *results = function(*arguments)
        assert code == driver.CUresult.CUDA_SUCCESS, (function, code)
    driver.cuCtxSetCurrent(results[0])
    held = {}
    for line in sys.stdin:
        order = json.loads(line)
        name, answer = order.get("name"), {}
        if order["do"] == "take":
            code, pointer = driver.cuMemAlloc(order["bytes"])
            held[name] = (driver.cuMemFree, pointer)
        elif order["do"] == "export":
            code, handle = driver.cuIpcGetMemHandle(held[name][1])
            answer["handle"] = ctypes.string_at(handle.getPtr(), HANDLE_BYTES).hex()
        elif order["do"] == "import":
            handle = driver.CUipcMemHandle()
            ctypes.memmove(handle.getPtr(), bytes.fromhex(order["handle"]), HANDLE_BYTES)
            lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            code, pointer = driver.cuIpcOpenMemHandle(handle, lazy)
            held[name] = (driver.cuIpcCloseMemHandle, pointer)
        elif order["do"] == "give":
            give, pointer = held.pop(name)
            (code,) = give(pointer)
        else:
            code, free, total = driver.cuMemGetInfo()
            answer["used"] = total - free
        if code != driver.CUresult.CUDA_SUCCESS:
            held.pop(name, None)
        print(json.dumps(answer | {"done": code == driver.CUresult.CUDA_SUCCESS}), flush=True)


main()
