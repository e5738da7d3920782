/* Device memory by each of the driver's ways to take it. */
#ifndef VGPU_PROBE_BLOCK_H
#define VGPU_PROBE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

enum probe_api {
    PROBE_API_ALLOC,   /* cuMemAlloc */
    PROBE_API_ASYNC,   /* cuMemAllocAsync on the default stream */
    PROBE_API_VMM,     /* cuMemCreate + cuMemAddressReserve + cuMemMap + cuMemSetAccess */
    PROBE_API_MANAGED, /* cuMemAllocManaged */
    PROBE_APIS,
};
extern const char *const probe_api_names[PROBE_APIS];

struct probe_block {
    enum probe_api api;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle; /* VMM only */
    uint64_t bytes;                      /* as taken: VMM rounds up to its granularity */
};

/* Takes memory on the current context's device. On failure nothing is held and the driver's code is returned. */
CUresult probe_block_take(const struct probe_driver *driver, CUdevice device, enum probe_api api, uint64_t bytes,
                          struct probe_block *block);
CUresult probe_block_give(const struct probe_driver *driver, const struct probe_block *block);
/* Writes a mark at both ends, which shows that the whole block is there; the first can be told later. */
CUresult probe_block_mark(const struct probe_driver *driver, const struct probe_block *block, uint64_t mark);
bool probe_block_holds(const struct probe_driver *driver, const struct probe_block *block, uint64_t mark);

#endif
