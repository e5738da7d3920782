# mypy: ignore-errors
# cuda-bindings is only in the client's environment.
"""A random walk over the driver's ways to take and give memory; after each step what the quota counts is told."""

from __future__ import annotations

import random
import sys

from cuda import bindings
from cuda.bindings import driver
from dialogue import GIB, tell

MIB = 1 << 20
SIZES = [1, 256, 4096, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB, 17 * MIB, 64 * MIB, 300 * MIB, GIB]
PTX = b".version 7.0\n.target sm_60\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
FLOAT = driver.CUarray_format.CU_AD_FORMAT_FLOAT
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
NEVER_RELEASE = driver.cuuint64_t((1 << 64) - 1)


class OutOfMemoryError(Exception):
    """The driver said out of memory: the walk goes on."""


def call(function, *arguments):
    """Return what the driver returned beside its code; any code but success and out of memory ends the program."""
    code, *results = function(*arguments)
    if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise OutOfMemoryError
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__}{arguments}: {code.name}")
    return results[0] if len(results) == 1 else results


class Walk:
    """What the walk holds. Each way that takes returns a function that gives back."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311 - a walk that can be repeated
        self.held = []
        self.pools = []
        self.managed = 0
        call(driver.cuInit, 0)
        self.device = call(driver.cuDeviceGet, 0)
        self.context = call(driver.cuDevicePrimaryCtxRetain, self.device)
        call(driver.cuCtxSetCurrent, self.context)
        self.total = call(driver.cuDeviceTotalMem, self.device)
        self.location = driver.CUmemLocation()
        self.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.location.id = 0

    def size(self):
        return self.random.choice(SIZES)

    def linear(self):
        pointer = call(driver.cuMemAlloc, self.size())
        return lambda: call(driver.cuMemFree, pointer)

    def pitch(self):
        width, height = self.random.randrange(1, 5000), self.random.randrange(1, 4000)
        pointer, _ = call(driver.cuMemAllocPitch, width, height, self.random.choice([4, 8, 16]))
        return lambda: call(driver.cuMemFree, pointer)

    def managed_memory(self):
        pointer = call(driver.cuMemAllocManaged, self.size(), driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
        self.managed += 1

        def give():
            call(driver.cuMemFree, pointer)
            self.managed -= 1

        return give

    def stream_ordered(self):
        pointer = call(driver.cuMemAllocAsync, self.size(), 0)
        if self.random.random() < 0.3:
            return lambda: call(driver.cuMemFree, pointer)
        return lambda: self.free_in_stream(pointer)

    def free_in_stream(self, pointer):
        call(driver.cuMemFreeAsync, pointer, 0)
        call(driver.cuStreamSynchronize, 0)

    def pooled(self):
        if len(self.pools) < 3:
            properties = driver.CUmemPoolProps()
            properties.allocType = PINNED
            properties.location = self.location
            pool = call(driver.cuMemPoolCreate, properties)
            if self.random.random() < 0.5:
                threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                call(driver.cuMemPoolSetAttribute, pool, threshold, NEVER_RELEASE)
            self.pools.append(pool)
        pointer = call(driver.cuMemAllocFromPoolAsync, self.size(), self.random.choice(self.pools), 0)
        return lambda: self.free_in_stream(pointer)

    def trim(self):
        if self.pools:
            call(driver.cuMemPoolTrimTo, self.random.choice(self.pools), self.random.choice([0, 64 * MIB]))

    def virtual(self):
        """Give the handle back before, after or without the mapping, or after a second look-up of it."""
        size = self.random.choice([2, 4, 32, 256]) * MIB
        properties = driver.CUmemAllocationProp()
        properties.type = PINNED
        properties.location = self.location
        handle = call(driver.cuMemCreate, size, properties, 0)
        order = self.random.choice(["unmapped", "released first", "released last", "retained"])
        if order == "unmapped":
            return lambda: call(driver.cuMemRelease, handle)
        address = call(driver.cuMemAddressReserve, size, 0, 0, 0)
        call(driver.cuMemMap, address, size, 0, handle, 0)
        if order == "retained":
            again = call(driver.cuMemRetainAllocationHandle, int(address))
            call(driver.cuMemRelease, handle)
            handle = again
        if order == "released first":
            call(driver.cuMemRelease, handle)

        def give():
            call(driver.cuMemUnmap, address, size)
            call(driver.cuMemAddressFree, address, size)
            if order != "released first":
                call(driver.cuMemRelease, handle)

        return give

    def array(self):
        shape = driver.CUDA_ARRAY_DESCRIPTOR()
        shape.Width, shape.Height = self.random.randrange(600, 4000), self.random.randrange(600, 4000)
        shape.Format, shape.NumChannels = FLOAT, self.random.choice([1, 2, 4])
        array = call(driver.cuArrayCreate, shape)
        return lambda: call(driver.cuArrayDestroy, array)

    def mipmapped(self):
        shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
        shape.Width, shape.Height, shape.Depth = (self.random.randrange(70, 300) for _ in range(3))
        shape.Format, shape.NumChannels = FLOAT, 1
        array = call(driver.cuMipmappedArrayCreate, shape, self.random.randrange(1, 4))
        return lambda: call(driver.cuMipmappedArrayDestroy, array)

    def module(self):
        module = call(driver.cuModuleLoadData, PTX)
        return lambda: call(driver.cuModuleUnload, module)

    def context_with_memory(self):
        """Another context; what was taken in it dies with it."""
        create = driver.cuCtxCreate
        context = call(create, None, 0, self.device) if NEW_CONTEXTS else call(create, 0, self.device)
        try:
            call(driver.cuMemAlloc, self.size())
            call(driver.cuMemAlloc, self.size())
        except OutOfMemoryError:
            pass
        call(driver.cuCtxPopCurrent)
        return lambda: call(driver.cuCtxDestroy, context)

    def graph(self):
        """A graph whose nodes take memory and give it back; what it reserved is kept until trimmed."""
        graph = call(driver.cuGraphCreate, 0)
        properties = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
        properties.poolProps.allocType = PINNED
        properties.poolProps.location = self.location
        properties.bytesize = self.random.choice([3, 64, 700]) * MIB
        instance = None
        try:
            node = call(driver.cuGraphAddMemAllocNode, graph, None, 0, properties)
            call(driver.cuGraphAddMemFreeNode, graph, [node], 1, properties.dptr)
            instance = call(driver.cuGraphInstantiate, graph, 0)
            for _ in range(2):
                call(driver.cuGraphLaunch, instance, 0)
                call(driver.cuStreamSynchronize, 0)
        finally:
            if instance is not None:
                call(driver.cuGraphExecDestroy, instance)
            call(driver.cuGraphDestroy, graph)
            if self.random.random() < 0.5:
                call(driver.cuDeviceGraphMemTrim, self.device)

    def give(self):
        if self.held:
            self.held.pop(self.random.randrange(len(self.held)))()

    def step(self):
        """Take one step and return its name."""
        takers = [self.linear, self.linear, self.linear, self.pitch, self.managed_memory, self.stream_ordered]
        takers += [self.stream_ordered, self.pooled, self.pooled, self.virtual, self.virtual, self.array]
        takers += [self.mipmapped, self.module, self.context_with_memory, self.graph, self.trim]
        way = self.random.choice(takers + [self.give] * 12)
        try:
            back = way()
            if back is not None:
                self.held.append(back)
        except OutOfMemoryError:
            return f"{way.__name__}, refused"
        return way.__name__

    def used(self):
        """What the quota counts, as every program is told it."""
        return self.total - call(driver.cuMemGetInfo)[0]


NEW_CONTEXTS = int(bindings.__version__.split(".")[0]) >= 13  # cuCtxCreate got a first parameter


def main():
    walk = Walk(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        name = walk.step()
        tell(step=name, used=walk.used(), total=walk.total, managed=walk.managed)
    while walk.held:
        walk.give()
    tell(step="all given back", used=walk.used(), total=walk.total, managed=0)


main()
