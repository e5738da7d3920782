# mypy: ignore-errors
# cuda-bindings is only in the client's environment.
"""cuda-bindings' driver module: every way that it has to take memory, 1 GiB at a time."""

from __future__ import annotations

from cuda.bindings import driver
from dialogue import GIB, eight_times, tell


class DriverError(Exception):
    """A call that didn't return CUDA_SUCCESS; its text is the code's name."""


def call(function, *arguments):
    """Return what the driver returned beside its code."""
    code, *results = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(code.name)
    return results[0] if len(results) == 1 else results


def pinned_on(device):
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = int(device)
    return location


def take_pitch():
    pointer, _ = call(driver.cuMemAllocPitch, 1 << 20, 1024, 4)
    return pointer


def take_array():
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width = shape.Height = 16384
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    shape.NumChannels = 1
    return call(driver.cuArrayCreate, shape)


def free_async(pointer):
    call(driver.cuMemFreeAsync, pointer, 0)
    call(driver.cuStreamSynchronize, 0)


def make_pool(device):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = pinned_on(device)
    return call(driver.cuMemPoolCreate, properties)


class Virtual:
    """Memory by cuMemCreate, mapped at an address of its own."""

    def __init__(self, device):
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = pinned_on(device)
        self.handle = call(driver.cuMemCreate, GIB, properties, 0)
        self.address = call(driver.cuMemAddressReserve, GIB, 0, 0, 0)
        call(driver.cuMemMap, self.address, GIB, 0, self.handle, 0)

    def give(self):
        call(driver.cuMemUnmap, self.address, GIB)
        call(driver.cuMemRelease, self.handle)
        call(driver.cuMemAddressFree, self.address, GIB)


def main():
    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, 0)
    tell(total=call(driver.cuDeviceTotalMem, device))
    context = call(driver.cuDevicePrimaryCtxRetain, device)
    call(driver.cuCtxSetCurrent, context)
    free, total = call(driver.cuMemGetInfo)
    tell(total=total, free=free)
    pool = make_pool(device)
    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    ways = {
        "linear": (lambda: call(driver.cuMemAlloc, GIB), lambda p: call(driver.cuMemFree, p)),
        "pitch": (take_pitch, lambda p: call(driver.cuMemFree, p)),
        "managed": (lambda: call(driver.cuMemAllocManaged, GIB, flags), lambda p: call(driver.cuMemFree, p)),
        "async": (lambda: call(driver.cuMemAllocAsync, GIB, 0), free_async),
        "pool": (lambda: call(driver.cuMemAllocFromPoolAsync, GIB, pool, 0), free_async),
        "virtual": (lambda: Virtual(device), Virtual.give),
        "array": (take_array, lambda a: call(driver.cuArrayDestroy, a)),
    }
    for way, (take, give) in ways.items():
        eight_times(way, take, give, DriverError)
    call(driver.cuMemPoolDestroy, pool)
    call(driver.cuDevicePrimaryCtxRelease, device)


main()
