#include "block.h"

#include <string.h>

const char *const probe_api_names[PROBE_APIS] = {"alloc", "async", "vmm", "managed"};

static CUresult take_async(const struct probe_driver *driver, uint64_t bytes, CUdeviceptr *address) {
    if (driver->cuMemAllocAsync == NULL || driver->cuMemFreeAsync == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = driver->cuMemAllocAsync(address, bytes, NULL);
    return code == CUDA_SUCCESS ? driver->cuCtxSynchronize() : code;
}

static CUresult take_vmm(const struct probe_driver *driver, CUdevice device, struct probe_block *block) {
    if (driver->cuMemCreate == NULL || driver->cuMemMap == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    size_t granularity = 0;
    CUresult code = driver->cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS) return code;
    block->bytes = (block->bytes + granularity - 1) / granularity * granularity;
    code = driver->cuMemCreate(&block->handle, block->bytes, &properties, 0);
    if (code != CUDA_SUCCESS) return code;
    code = driver->cuMemAddressReserve(&block->address, block->bytes, 0, 0, 0);
    if (code != CUDA_SUCCESS) goto release;
    code = driver->cuMemMap(block->address, block->bytes, 0, block->handle, 0);
    if (code != CUDA_SUCCESS) goto unreserve;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    code = driver->cuMemSetAccess(block->address, block->bytes, &access, 1);
    if (code == CUDA_SUCCESS) return code;
    driver->cuMemUnmap(block->address, block->bytes);
unreserve:
    driver->cuMemAddressFree(block->address, block->bytes);
release:
    driver->cuMemRelease(block->handle);
    return code;
}

CUresult probe_block_take(const struct probe_driver *driver, CUdevice device, enum probe_api api, uint64_t bytes,
                          struct probe_block *block) {
    *block = (struct probe_block){.api = api, .bytes = bytes};
    switch (api) {
    case PROBE_API_ASYNC:
        return take_async(driver, bytes, &block->address);
    case PROBE_API_VMM:
        return take_vmm(driver, device, block);
    case PROBE_API_MANAGED:
        if (driver->cuMemAllocManaged == NULL) return CUDA_ERROR_NOT_SUPPORTED;
        return driver->cuMemAllocManaged(&block->address, bytes, CU_MEM_ATTACH_GLOBAL);
    default:
        return driver->cuMemAlloc_v2(&block->address, bytes);
    }
}

CUresult probe_block_give(const struct probe_driver *driver, const struct probe_block *block) {
    CUresult code;
    switch (block->api) {
    case PROBE_API_ASYNC:
        code = driver->cuMemFreeAsync(block->address, NULL);
        return code == CUDA_SUCCESS ? driver->cuCtxSynchronize() : code;
    case PROBE_API_VMM: {
        CUresult unmapped = driver->cuMemUnmap(block->address, block->bytes);
        CUresult released = driver->cuMemRelease(block->handle);
        code = driver->cuMemAddressFree(block->address, block->bytes);
        if (unmapped != CUDA_SUCCESS) return unmapped;
        return released != CUDA_SUCCESS ? released : code;
    }
    default:
        return driver->cuMemFree_v2(block->address);
    }
}

CUresult probe_block_mark(const struct probe_driver *driver, const struct probe_block *block, uint64_t mark) {
    CUresult code = driver->cuMemcpyHtoD_v2(block->address, &mark, sizeof mark);
    if (code != CUDA_SUCCESS) return code;
    return driver->cuMemcpyHtoD_v2(block->address + block->bytes - sizeof mark, &mark, sizeof mark);
}

bool probe_block_holds(const struct probe_driver *driver, const struct probe_block *block, uint64_t mark) {
    uint64_t found = 0;
    return driver->cuMemcpyDtoH_v2(&found, block->address, sizeof found) == CUDA_SUCCESS && found == mark;
}
