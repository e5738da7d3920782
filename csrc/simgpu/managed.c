/* Managed memory: addresses for host and device, charged to the card as far as the card has touched it.
 *
 * Kernels don't run here, so "touched" means prefetched, set or copied to by the driver. What doesn't fit stays on the
 * host, as it would be evicted on a real card. */
#include <string.h>

#include "copy.h"
#include "stream.h"

CUAPI(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned flags)) {
    ENTER_UNSAFE();
    if (!pointer || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_C(1) << 40) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    struct memory *memory = memory_new(MEMORY_MANAGED, current_context->device, current_context);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (memory) {
        memory->size = bytes;
        memory->flags = flags;
        memory->blocks = (uint32_t)((bytes + BLOCK - 1) >> BLOCK_SHIFT);
        memory->base = arena_take(memory->blocks, 1, false);
        if (memory->base) {
            memory->touched = true; /* the host writes without asking */
            arena_set(memory->base, memory);
            sim_count_request(&driver.view, driver.device[memory->device].card, 1);
            *pointer = memory->base;
            result = CUDA_SUCCESS;
        } else {
            memory_recycle(memory);
        }
    }
    driver_unlock();
    return result;
}

void managed_give_locked(struct memory *memory) {
    arena_drop(memory->base, (uint64_t)memory->blocks << BLOCK_SHIFT);
    arena_clear(memory->base);
    arena_give(memory->base, memory->blocks);
    sim_uncharge(&driver.view, driver.device[memory->device].card, SIM_DATA, memory->charged_bytes, 1);
    memory_recycle(memory);
}

CUresult managed_resident_locked(struct memory *memory, uint64_t bytes) {
    uint64_t wanted = (bytes + BLOCK - 1) & ~(BLOCK - 1);
    if (wanted <= memory->charged_bytes) return CUDA_SUCCESS;
    unsigned card = driver.device[memory->device].card;
    uint64_t left = sim_free_bytes(&driver.view, card) & ~(BLOCK - 1), more = wanted - memory->charged_bytes;
    if (more > left) more = left;
    if (more && sim_charge(&driver.view, card, SIM_DATA, more, 0) == 0) memory->charged_bytes += more;
    return CUDA_SUCCESS;
}

/* Moves a range to a device, or away from it. Only a whole allocation leaves the card. */
static CUresult prefetch(CUdeviceptr pointer, uint64_t bytes, CUmemLocation to) {
    bool device = to.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (bytes == 0 || (device && !device_valid(to.id)))
        return device && bytes ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct memory *memory = memory_find(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (memory && memory->kind == MEMORY_MANAGED && bytes <= memory->size - (pointer - memory->base)) {
        result = CUDA_SUCCESS;
        if (!device || to.id != memory->device) { /* the pages leave the device they are on */
            sim_uncharge(&driver.view, driver.device[memory->device].card, SIM_DATA, memory->charged_bytes, 0);
            memory->charged_bytes = 0;
        }
        if (device) {
            if (to.id != memory->device) {
                sim_count_request(&driver.view, driver.device[memory->device].card, -1);
                memory->device = (uint8_t)to.id;
                sim_count_request(&driver.view, driver.device[memory->device].card, 1);
            }
            result = managed_resident_locked(memory, pointer - memory->base + bytes);
        }
    }
    driver_unlock();
    return result;
}

static CUmemLocation location_of(CUdevice device) {
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           .id = device};
}

CUAPI(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return prefetch(pointer, bytes, location_of(device));
}

CUAPI(cuMemPrefetchAsync_v2,
      (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, bytes, location);
}

CUAPI(cuMemPrefetchBatchAsync, (CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *locations,
                                size_t *indexes, size_t location_count, unsigned long long flags, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!pointers || !sizes || !locations || !indexes || count == 0 || location_count == 0 || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, at = 0; i < count; i++) {
        while (at + 1 < location_count && indexes[at + 1] <= i)
            at++;
        TRY(prefetch(pointers[i], sizes[i], locations[at]));
    }
    return CUDA_SUCCESS;
}

static CUresult advise(CUdeviceptr pointer, uint64_t bytes, CUmem_advise advice, CUmemLocation location) {
    if (bytes == 0 || (int)advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct memory *memory = memory_find(pointer);
    CUresult result = memory && memory->kind == MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        memory->prefer = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
    if (result == CUDA_SUCCESS && advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) memory->prefer = CU_DEVICE_INVALID;
    driver_unlock();
    return result;
}

CUAPI(cuMemAdvise, (CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device)) {
    ENTER();
    return advise(pointer, bytes, advice, location_of(device));
}

CUAPI(cuMemAdvise_v2, (CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location)) {
    ENTER();
    return advise(pointer, bytes, advice, location);
}

CUAPI(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)) {
    (void)bytes, (void)flags;
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    driver_lock();
    const struct memory *memory = memory_find(pointer);
    CUresult result = memory && memory->kind == MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

CUAPI(cuMemRangeGetAttribute,
      (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer, size_t bytes)) {
    ENTER();
    if (!data || size < sizeof(int) || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct memory *memory = memory_find(pointer);
    CUresult result = memory && memory->kind == MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        memset(data, 0, size);
        if (attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION)
            *(int *)data = memory->prefer == -1 ? CU_DEVICE_INVALID : memory->prefer;
        if (attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)
            *(int *)data = memory->charged_bytes ? memory->device : CU_DEVICE_INVALID;
    }
    driver_unlock();
    return result;
}
