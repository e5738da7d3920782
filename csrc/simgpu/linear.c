/* Linear device memory: cuMemAlloc and its family, managed memory, what is left, what a pointer is. */
#include <string.h>

#include "ipc.h"

static CUresult take(CUdeviceptr *pointer, uint64_t bytes, enum memory_kind kind, bool low) {
    driver_lock();
    struct memory *memory = memory_new(kind, current_context->device, current_context);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (LIKELY(memory)) {
        memory->size = bytes;
        result = memory_take(memory, NULL, low);
        if (LIKELY(result == CUDA_SUCCESS))
            *pointer = memory->base;
        else
            memory_recycle(memory);
    }
    driver_unlock();
    return result;
}

/* No card is that large, and sums must not overflow. */
static inline bool absurd(uint64_t bytes) {
    return bytes > UINT64_C(1) << 46;
}

CUAPI(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes)) {
    ENTER_UNSAFE();
    if (UNLIKELY(!pointer || bytes == 0)) return CUDA_ERROR_INVALID_VALUE;
    if (UNLIKELY(absurd(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    return take(pointer, bytes, MEMORY_LINEAR, false);
}

CUAPI(cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned bytes)) {
    ENTER_UNSAFE();
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr address;
    TRY(take(&address, bytes, MEMORY_LINEAR, true));
    *pointer = (CUdeviceptr_v1)address;
    return CUDA_SUCCESS;
}

static CUresult take_pitch(CUdeviceptr *pointer, uint64_t *pitch, uint64_t width, uint64_t height, unsigned element,
                           bool low) {
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = (width + 511) & ~UINT64_C(511);
    if (absurd(width) || absurd(height) || row > (UINT64_C(1) << 46) / height) return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = row;
    return take(pointer, row * height, MEMORY_LINEAR, low);
}

CUAPI(cuMemAllocPitch_v2,
      (CUdeviceptr * pointer, size_t *pitch, size_t width_bytes, size_t height, unsigned element_bytes)) {
    ENTER_UNSAFE();
    if (!pointer || !pitch) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = 0;
    TRY(take_pitch(pointer, &row, width_bytes, height, element_bytes, false));
    *pitch = row;
    return CUDA_SUCCESS;
}

CUAPI(cuMemAllocPitch,
      (CUdeviceptr_v1 * pointer, unsigned *pitch, unsigned width_bytes, unsigned height, unsigned element_bytes)) {
    ENTER_UNSAFE();
    if (!pointer || !pitch) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = 0;
    CUdeviceptr address;
    TRY(take_pitch(&address, &row, width_bytes, height, element_bytes, true));
    *pointer = (CUdeviceptr_v1)address;
    *pitch = (unsigned)row;
    return CUDA_SUCCESS;
}

static CUresult give(CUdeviceptr pointer) {
    driver_lock();
    struct memory *memory = memory_find(pointer);
    bool freeable = memory && memory->base == pointer &&
                    (memory->kind == MEMORY_LINEAR || memory->kind == MEMORY_MANAGED || memory->kind == MEMORY_POOL ||
                     memory->kind == MEMORY_GRAPH);
    if (freeable) {
        if (memory->kind == MEMORY_GRAPH)
            freeable = graph_memory_free_locked(memory);
        else if (memory->kind == MEMORY_MANAGED)
            managed_give_locked(memory);
        else if (memory->kind == MEMORY_POOL)
            pool_memory_give_locked(memory);
        else
            memory_give(memory);
    } else if (memory && memory->kind == MEMORY_IMPORTED)
        freeable = ticket_close_locked(pointer, true); /* of another process's pool */
    driver_unlock();
    return freeable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemFree_v2, (CUdeviceptr pointer)) {
    ENTER_UNSAFE();
    return pointer ? give(pointer) : CUDA_SUCCESS;
}

CUAPI(cuMemFree, (CUdeviceptr_v1 pointer)) {
    ENTER_UNSAFE();
    return pointer ? give(pointer) : CUDA_SUCCESS;
}

/* Giving back what the dead hold costs a look at every process: at most once a millisecond. */
static uint64_t free_now(unsigned card) {
    static uint64_t looked_ns;
    uint64_t now = sim_now_ns();
    if (now - __atomic_load_n(&looked_ns, __ATOMIC_RELAXED) > 1000000) {
        __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
        sim_reap(&driver.view);
    }
    return sim_free_bytes(&driver.view, card);
}

CUAPI(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes)) {
    ENTER_CONTEXT();
    if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card_config *card = card_config(current_context->device);
    *total_bytes = card->total_bytes - card->reserved_bytes;
    *free_bytes = free_now(driver.device[current_context->device].card);
    return CUDA_SUCCESS;
}

CUAPI(cuMemGetInfo, (unsigned *free_bytes, unsigned *total_bytes)) {
    ENTER_CONTEXT();
    if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card_config *card = card_config(current_context->device);
    uint64_t total = card->total_bytes - card->reserved_bytes;
    uint64_t left = free_now(driver.device[current_context->device].card);
    *total_bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
    *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned)left;
    return CUDA_SUCCESS;
}

static void release(struct memory *memory, void *context) {
    if (memory->context != context) return;
    switch (memory->kind) {
    case MEMORY_LINEAR:
        memory_give(memory);
        break;
    case MEMORY_POOL:
        pool_memory_give_locked(memory);
        break;
    case MEMORY_MANAGED:
        managed_give_locked(memory);
        break;
    case MEMORY_IMPORTED:
        import_give_locked(memory);
        break;
    default:
        break;
    }
}

void memory_release_context_locked(CUcontext context) {
    memory_each(release, context);
}
