# mypy: ignore-errors
# cuda-core is only in the client's environment.
"""cuda-core's memory resources, 1 GiB at a time."""

from __future__ import annotations

from cuda import bindings
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
        "virtual": VirtualMemoryResource(device),
    }
    if int(bindings.__version__.split(".")[0]) >= 13:
        resources["managed"] = ManagedMemoryResource()

    def give(buffer):
        buffer.close()
        stream.sync()

    for way, resource in resources.items():
        eight_times(way, lambda resource=resource: resource.allocate(GIB, stream=stream), give, Exception)


main()
