"""A program that uses the driver as it is told: one JSON request a line on stdin, one JSON answer a line on stdout.

Runs as a process of its own, under the library or not, and knows nothing of the tests. A request is
[name, arguments...]; the answer is what the function of that name returns. Driver calls answer [CUresult, outputs...].
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

u64, size_t, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
cuda = ctypes.CDLL("libcuda.so.1", use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Any driver function: ints are passed as 64 bits, everything else as it is."""
    return int(getattr(cuda, name)(*(u64(a) if isinstance(a, int) else a for a in arguments)))


def out(name: str, *arguments: Any, where: int = 0) -> list[int]:
    """A driver function that returns one 64-bit value by a pointer, at position `where` of its parameters."""
    value = u64(0)
    parameters = list(arguments)
    parameters.insert(where, ctypes.byref(value))
    return [call(name, *parameters), value.value]


def start(device: int = 0) -> list[int]:
    """cuInit, the device's primary context, made current: the results of the three."""
    init = call("cuInit", 0)
    retain, context = out("cuDevicePrimaryCtxRetain", device) if init == 0 else [init, 0]
    return [init, retain, call("cuCtxSetCurrent", context) if retain == 0 else retain]


def alloc(size: int) -> list[int]:
    return out("cuMemAlloc_v2", size)


def errno_after(name: str, *arguments: Any) -> int:
    """What errno is after a call, having been 77 before."""
    ctypes.set_errno(77)
    globals()[name](*arguments)
    return ctypes.get_errno()


def fastest(count: int, name: str, *arguments: Any) -> int:
    """Nanoseconds that the fastest of so many calls of `out` took: the one that nothing interrupted."""
    taken = []
    for _ in range(count):
        begin = time.monotonic_ns()
        out(name, *arguments)
        taken.append(time.monotonic_ns() - begin)
    return min(taken)


def fill(size: int, most: int = 100000) -> int:
    """How many allocations of this size succeed."""
    count = 0
    while count < most and alloc(size)[0] == 0:
        count += 1
    return count


def info() -> list[int]:
    """Result, free, total of cuMemGetInfo."""
    free, total = size_t(0), size_t(0)
    return [call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)), free.value, total.value]


class _Prop(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32", pointer),
        ("flags", u64),
    )


def vmm_create(size: int, device: int = 0, location: int = 1, handle_types: int = 0) -> list[int]:
    """cuMemCreate on a device (location 1) or on the host (2)."""
    prop = _Prop(1, handle_types, location, device, None, 0)
    return out("cuMemCreate", size, ctypes.byref(prop), 0)


def vmm_reserve(size: int) -> list[int]:
    return out("cuMemAddressReserve", size, 0, 0, 0)


class _PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("security", pointer),
        ("max_size", size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


def pool_create(device: int = 0, location: int = 1, handle_types: int = 0) -> list[int]:
    return out("cuMemPoolCreate", ctypes.byref(_PoolProps(1, handle_types, location, device)))


def pool_attribute(pool: int, attribute: int) -> list[int]:
    value = u64(0)
    return [call("cuMemPoolGetAttribute", pool, attribute, ctypes.byref(value)), value.value]


def pool_set(pool: int, attribute: int, value: int) -> int:
    number = u64(value)
    return call("cuMemPoolSetAttribute", pool, attribute, ctypes.byref(number))


def pitch(width: int, height: int) -> list[int]:
    address, row = u64(0), size_t(0)
    result = call("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(row), width, height, 4)
    return [result, address.value, row.value]


def array(width: int, height: int = 0, depth: int = 0, channels: int = 4, flags: int = 0) -> list[int]:
    """A 3D array of floats."""
    fields = (size_t * 4)(width, height, depth, 0x20 | channels << 32)
    descriptor = (ctypes.c_ubyte * 40)()
    ctypes.memmove(descriptor, fields, 32)
    ctypes.memmove(ctypes.byref(descriptor, 32), (ctypes.c_uint * 1)(flags), 4)
    return out("cuArray3DCreate_v2", descriptor)


def mipmapped(width: int, height: int, levels: int) -> list[int]:
    fields = (size_t * 4)(width, height, 0, 0x20 | 4 << 32)
    descriptor = (ctypes.c_ubyte * 40)()
    ctypes.memmove(descriptor, fields, 32)
    return out("cuMipmappedArrayCreate", descriptor, levels)


def ipc_get(address: int) -> list[Any]:
    handle = (ctypes.c_ubyte * 64)()
    result = call("cuIpcGetMemHandle", handle, address)
    return [result, bytes(handle).hex()]


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def ipc_open(handle: str) -> list[int]:
    value = u64(0)
    opened = _IpcHandle.from_buffer_copy(bytes.fromhex(handle))
    return [int(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(value), opened, ctypes.c_uint(1))), value.value]


def vmm_export(handle: int) -> list[int]:
    """A descriptor of this process."""
    fd = ctypes.c_int(-1)
    return [call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, 0), fd.value]


def vmm_import(pid: int, fd: int) -> list[int]:
    """Imports what a descriptor of another process stands for."""
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    answer = out("cuMemImportFromShareableHandle", own, 1)
    os.close(own)
    return answer


def module_load(image: str) -> list[int]:
    """cuModuleLoadData of PTX text."""
    return out("cuModuleLoadData", ctypes.c_char_p(image.encode()))


def library_load(image: str) -> list[int]:
    return out("cuLibraryLoadData", ctypes.c_char_p(image.encode()), 0, 0, 0, 0, 0, 0)


def named(function: str, owner: int, name: str) -> list[int]:
    """cuModuleGetFunction or cuLibraryGetKernel."""
    return out(function, owner, ctypes.c_char_p(name.encode()))


def all_of(count: str, enumerate_: str, owner: int) -> list[int]:
    """cuModuleEnumerateFunctions or cuLibraryEnumerateKernels: result, handles."""
    number = ctypes.c_uint(0)
    call(count, ctypes.byref(number), owner)
    handles = (u64 * number.value)()
    return [int(getattr(cuda, enumerate_)(handles, number, u64(owner))), *handles]


def launch(function: int, stream: int = 0) -> int:
    return call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)


def launch_on_several(function: int) -> int:
    """cuLaunchCooperativeKernelMultiDevice, on one."""
    launches = (u64 * 7)(function, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, 0, 0)
    return call("cuLaunchCooperativeKernelMultiDevice", launches, 1, 0)


def captured_launch(function: int) -> list[int]:
    """A graph recorded from a stream that launches: result, graph."""
    stream, graph = u64(0), u64(0)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    results = [call("cuStreamBeginCapture_v2", stream.value, 0), launch(function, stream.value)]
    results.append(call("cuStreamEndCapture", stream.value, ctypes.byref(graph)))
    return [max(results), graph.value]


def set_kernel(executable: int, graph: int, function: int) -> int:
    """Lets the first node of an executable graph launch another function."""
    nodes, count = (u64 * 1)(), size_t(1)
    call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    parameters = (u64 * 9)(function, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32)
    return call("cuGraphExecKernelNodeSetParams_v2", executable, nodes[0], parameters)


def past(offset: int, *arguments: Any) -> list[int]:
    """`out` of the function that begins so far into the driver's file, as no hook can see."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if "/libcuda.so" in line)
    value = u64(0)
    function = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *(u64 for _ in arguments))(base + offset)
    return [function(ctypes.addressof(value), *arguments), value.value]


class _AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", _PoolProps),
        ("access", pointer),
        ("access_count", size_t),
        ("bytes", size_t),
        ("address", u64),
    )


def graph_alloc(graph: int, size: int, after: int = 0) -> list[int]:
    """An allocation node: result, node, address."""
    node, before = u64(0), u64(after)
    parameters = _AllocNode(_PoolProps(1, 0, 1, 0), None, 0, size, 0)
    many = 1 if after else 0
    result = call(
        "cuGraphAddMemAllocNode",
        ctypes.byref(node), graph, ctypes.byref(before), many, ctypes.byref(parameters),
    )  # fmt: skip
    return [result, node.value, parameters.address]


def graph_free(graph: int, address: int, after: int) -> list[int]:
    node, before = u64(0), u64(after)
    result = call("cuGraphAddMemFreeNode", ctypes.byref(node), graph, ctypes.byref(before), 1, address)
    return [result, node.value]


def graph_child(graph: int, child: int) -> list[int]:
    return out("cuGraphAddChildGraphNode", graph, 0, 0, child)


def captured(size: int, free: bool) -> list[int]:
    """A graph recorded from a stream that allocates, and frees again: result, graph."""
    stream, graph, address = u64(0), u64(0), u64(0)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    results = [call("cuStreamBeginCapture_v2", stream.value, 0)]
    results.append(call("cuMemAllocAsync", ctypes.byref(address), size, stream.value))
    if free:
        results.append(call("cuMemFreeAsync", address.value, stream.value))
    results.append(call("cuStreamEndCapture", stream.value, ctypes.byref(graph)))
    return [max(results), graph.value]


def green(device: int = 0) -> list[int]:
    """A green context of all multiprocessors: result, handle."""
    resource = (ctypes.c_ubyte * 144)()
    description = u64(0)
    results = [call("cuDeviceGetDevResource", device, resource, 1)]
    results.append(call("cuDevResourceGenerateDesc", ctypes.byref(description), resource, 1))
    made = out("cuGreenCtxCreate", description.value, device, 1)
    return [max(*results, made[0]), made[1]]


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("resource_type", ctypes.c_uint),
        ("resource", u64),
        ("subresource_type", ctypes.c_uint),
        ("subresource", u64 * 4),
        ("operation", ctypes.c_uint),
        ("handle_type", ctypes.c_uint),
        ("handle", u64),
        ("offset", u64),
        ("devices", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 2),
    )


def map_tile(array: int, tile: int, handle: int, tiles: int = 1) -> int:
    """Maps a VMM allocation into a sparse array at one tile or a row of them; handle 0 unmaps."""
    info = _MapInfo(0, array, 0)
    ctypes.memmove(
        ctypes.byref(info, _MapInfo.subresource.offset),
        (ctypes.c_uint * 8)(0, 0, tile * 16, 0, 0, 16 * tiles, 16, 1),
        32,
    )
    info.operation, info.handle, info.devices = (1, handle, 1) if handle else (2, 0, 1)
    return call("cuMemMapArrayAsync", ctypes.byref(info), 1, 0)


def multicast(devices: int, size: int, handle_types: int, flags: int) -> list[int]:
    return out("cuMulticastCreate", (u64 * 4)(devices, size, handle_types, flags))


def pool_export(pool: int) -> list[int]:
    """A descriptor of this process for a pool."""
    fd = ctypes.c_int(-1)
    return [call("cuMemPoolExportToShareableHandle", ctypes.byref(fd), pool, 1, 0), fd.value]


def pool_import(pid: int, fd: int) -> list[int]:
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    answer = out("cuMemPoolImportFromShareableHandle", own, 1, 0)
    os.close(own)
    return answer


def pool_export_pointer(address: int) -> list[Any]:
    data = (ctypes.c_ubyte * 64)()
    return [call("cuMemPoolExportPointer", data, address), bytes(data).hex()]


def pool_import_pointer(pool: int, data: str) -> list[int]:
    ticket = _IpcHandle.from_buffer_copy(bytes.fromhex(data))
    return out("cuMemPoolImportPointer", pool, ctypes.byref(ticket))


def external(pid: int, fd: int, size: int) -> list[int]:
    """cuImportExternalMemory of another process's descriptor."""
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    description = (u64 * 13)()
    description[0], description[1], description[3] = 1, own, size
    return out("cuImportExternalMemory", description)


def spawn(*command: str) -> int:
    """posix_spawn of another program; its exit status."""
    return os.waitpid(os.posix_spawn(command[0], list(command), dict(os.environ)), 0)[1]


def become(*command: str) -> None:
    """exec: this process is another program from now on."""
    os.execv(command[0], list(command))  # noqa: S606 - no shell is what is wanted


def nvml() -> list[list[int]]:
    """Total, used, free of device 0 by nvmlDeviceGetMemoryInfo and _v2; results first."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    device = pointer()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    first = (u64 * 3)()
    result = library.nvmlDeviceGetMemoryInfo(device, first)
    second = (u64 * 5)()
    second[0] = 40 | 2 << 24
    again = library.nvmlDeviceGetMemoryInfo_v2(device, second)
    library.nvmlShutdown()
    return [[result, first[0], first[2], first[1]], [again, second[1], second[4], second[3]]]


def fork_and(name: str, *arguments: Any) -> Any:
    """The answer of a forked child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(globals()[name](*arguments)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    return answer


def threads(count: int, size: int, rounds: int) -> int:
    """Threads that allocate and free; how many allocations succeeded in all."""
    granted = [0] * count
    current = u64(0)
    cuda.cuCtxGetCurrent(ctypes.byref(current))

    def work(number: int) -> None:
        call("cuCtxSetCurrent", current.value)
        for _ in range(rounds):
            result, address = alloc(size)
            if result == 0:
                granted[number] += 1
                call("cuMemFree_v2", address)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(granted)


def close_all() -> int:
    """What a daemon does: closes every descriptor but the standard ones."""
    os.closerange(3, 4096)
    return 0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        function: Callable[..., Any] = globals()[name]
        print(json.dumps(function(*arguments)), flush=True)


if __name__ == "__main__":
    main()
