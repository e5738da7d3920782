# mypy: ignore-errors
# cuda-core is only in the client's environment.
"""cuda-core's memory resources, 1 GiB at a time."""

from __future__ import annotations

from cuda import bindings
from cuda.bindings import driver
from cuda.core import Device, DeviceMemoryResource, ManagedMemoryResource, VirtualMemoryResource
from dialogue import GIB, eight_times, tell


def main():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    tell(name=device.name, uuid=device.uuid)
    resources = {
        "default": device.memory_resource,
        "pool": DeviceMemoryResource(device),
    }
    if int(bindings.__version__.split(".")[0]) >= 13:
        resources["managed"] = ManagedMemoryResource()
    resources["virtual"] = VirtualMemoryResource(device)  # last: it never gives back the handle that it made

    for way, resource in resources.items():

        def take(resource=resource):
            return resource.allocate(GIB, stream=stream)

        def give(buffer, resource=resource):
            buffer.close()
            stream.sync()
            if hasattr(resource, "handle"):  # a pool, which cuda-core lets keep what is freed
                driver.cuMemPoolTrimTo(resource.handle, 0)

        eight_times(way, take, give, Exception)


main()
