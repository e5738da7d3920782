# mypy: ignore-errors
# numba-cuda is only in the client's environment.
"""numba-cuda: device arrays of 1 GiB, and a kernel that it compiles itself."""

from __future__ import annotations

import numpy
from dialogue import GIB, eight_times, tell
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


@cuda.jit
def add_one(values):
    """One thread an element."""
    index = cuda.grid(1)
    if index < values.size:
        values[index] += 1


def main():
    context = cuda.current_context()
    free, total = context.get_memory_info()
    tell(total=total, free=free)
    arrays = []

    def give(array):
        arrays.clear()
        del array
        context.deallocations.clear()  # numba keeps freed memory for a while

    eight_times("array", lambda: cuda.device_array(GIB, dtype=numpy.uint8), give, CudaAPIError)
    values = cuda.to_device(numpy.zeros(1024, dtype=numpy.int32))
    add_one[4, 256](values)
    cuda.synchronize()
    tell(launched=True)


main()
