/* What an address is: cuPointerGetAttribute and cuMemGetAddressRange. */
#include <string.h>

#include "copy.h"

struct place {
    CUdeviceptr base;
    uint64_t bytes;
    CUcontext context;
    int device; /* -1: host memory */
    bool pinned;
    bool mapped;
    unsigned handle_types;
    const struct memory *memory;
};

static bool locate_locked(CUdeviceptr address, struct place *place) {
    *place = (struct place){.device = -1};
    if (!arena_covers(address)) {
        place->pinned = true;
        return host_find_locked((void *)(uintptr_t)address, &place->base, &place->bytes, &place->context);
    }
    const struct memory *memory = memory_find(address);
    if (!memory || memory->kind == MEMORY_ARRAY || memory->kind == MEMORY_SMALLS) return false;
    if (memory->kind == MEMORY_RESERVED) {
        place->mapped = true;
        return mapped_find_locked(address, &place->base, &place->bytes, &place->device, &place->handle_types);
    }
    if (address - memory->base >= memory->size) return false;
    place->base = memory->base;
    place->bytes = memory->size;
    place->context = memory->context;
    place->device = memory->device;
    place->memory = memory;
    if (memory->pool) place->handle_types = (unsigned)pool_handle_types(memory->pool);
    return true;
}

/* Writes what one attribute is; false for one that this address hasn't. */
static bool attribute_of(const struct place *place, CUdeviceptr address, int attribute, void *data) {
    const struct memory *memory = place->memory;
    bool managed = memory && memory->kind == MEMORY_MANAGED;
    bool pooled = memory && memory->kind == MEMORY_POOL;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (!place->context || pooled) return false;
        *(CUcontext *)data = place->context;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = place->device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!place->pinned && !managed) return false;
        *(void **)data = (void *)(uintptr_t)address;
        return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = memory && memory->sync_memops;
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = memory ? memory->id : place->base;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = managed;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = place->device < 0 ? place->context ? place->context->device : 0 : place->device;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = memory && memory->kind == MEMORY_LINEAR;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = place->base;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = place->bytes;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = 1;
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = place->handle_types;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned char *)data = 0;
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(CUmemAccess_flags *)data = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = pooled ? memory->pool : NULL;
        return pooled;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = memory ? memory->id : place->base;
        return true;
    }
    return false;
}

static size_t width_of(int attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return 1;
    default:
        return 8;
    }
}

CUAPI(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr pointer)) {
    ENTER();
    if (!data || (int)attribute < 1 || (int)attribute > CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)
        return CUDA_ERROR_INVALID_VALUE;
    struct place place;
    driver_lock();
    bool known = locate_locked(pointer, &place) && attribute_of(&place, pointer, (int)attribute, data);
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What an address hasn't is zero here, and an address that is nothing of ours is no error. */
CUAPI(cuPointerGetAttributes, (unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer)) {
    ENTER();
    if (count == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    struct place place;
    driver_lock();
    bool known = locate_locked(pointer, &place);
    for (unsigned i = 0; i < count; i++) {
        if (!data[i] || (known && attribute_of(&place, pointer, (int)attributes[i], data[i]))) continue;
        memset(data[i], 0, width_of((int)attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)data[i] = -2;
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr pointer)) {
    ENTER();
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct memory *memory = memory_find(pointer);
    if (memory) memory->sync_memops = *(const unsigned *)value != 0;
    driver_unlock();
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult address_range(CUdeviceptr *base, uint64_t *bytes, CUdeviceptr pointer) {
    struct place place;
    driver_lock();
    bool known = arena_covers(pointer) && locate_locked(pointer, &place);
    driver_unlock();
    if (!known) return CUDA_ERROR_NOT_FOUND;
    *base = place.base;
    *bytes = place.bytes;
    return CUDA_SUCCESS;
}

CUAPI(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *bytes, CUdeviceptr pointer)) {
    ENTER();
    CUdeviceptr start;
    uint64_t size;
    TRY(address_range(&start, &size, pointer));
    if (base) *base = start;
    if (bytes) *bytes = size;
    return CUDA_SUCCESS;
}

CUAPI(cuMemGetAddressRange, (CUdeviceptr_v1 * base, unsigned *bytes, CUdeviceptr_v1 pointer)) {
    ENTER();
    CUdeviceptr start;
    uint64_t size;
    TRY(address_range(&start, &size, pointer));
    if (base) *base = (CUdeviceptr_v1)start;
    if (bytes) *bytes = (unsigned)size;
    return CUDA_SUCCESS;
}
