/* Memory pools: blocks taken from the card when needed, kept when freed, given back when trimmed.
 *
 * A pool maps physical blocks wherever it likes, so only their number matters: a freed block serves any later request.
 * What is above the release threshold goes back to the card when the program synchronises, as with the real driver. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC 0x506f6f6cu

static CUmemoryPool pools;
static uint64_t cached_in_all; /* blocks; lets a synchronisation skip the list */

CUmemoryPool pool_new_locked(int device, const CUmemPoolProps *properties) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->magic = MAGIC;
    pool->device = device;
    pool->properties = *properties;
    pool->host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    pool->object = -1;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    small_heap_init(&pool->heap, device, pool, SIM_DATA);
    pool->next = pools;
    pools = pool;
    return pool;
}

bool pool_init_device(int device) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool = pool_new_locked(device, &properties);
    CUmemoryPool graphs = pool_new_locked(device, &properties);
    if (!pool || !graphs) return false;
    pool->standard = graphs->standard = true;
    graphs->graphs = true;
    graphs->threshold_bytes = UINT64_MAX;
    driver.device[device].default_pool = driver.device[device].current_pool = pool;
    driver.device[device].graph_pool = graphs;
    return true;
}

bool pool_valid_locked(CUmemoryPool wanted) {
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool == wanted) return !pool->doomed && !pool->graphs;
    return false;
}

struct small_heap *pool_heap(CUmemoryPool pool) {
    return &pool->heap;
}

static uint64_t grain_of(const struct CUmemPoolHandle_st *pool) {
    return card_config(pool->device)->pool_blocks;
}

CUresult pool_take_blocks(CUmemoryPool pool, uint64_t blocks) {
    uint64_t cached = pool->cached_blocks < blocks ? pool->cached_blocks : blocks;
    uint64_t fresh = (blocks - cached + grain_of(pool) - 1) / grain_of(pool) * grain_of(pool);
    uint64_t most = pool->properties.maxSize;
    if (fresh) {
        if (most && ((pool->reserved_blocks + fresh) << BLOCK_SHIFT) > ((most + BLOCK - 1) & ~(BLOCK - 1)))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!pool->host &&
            sim_charge(&driver.view, driver.device[pool->device].card, SIM_DATA, fresh << BLOCK_SHIFT, 0) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved_blocks += fresh;
        if (pool->reserved_high_blocks < pool->reserved_blocks) pool->reserved_high_blocks = pool->reserved_blocks;
    }
    pool->cached_blocks += fresh - blocks; /* what it keeps beyond the request, or has less of */
    cached_in_all += fresh - blocks;
    return CUDA_SUCCESS;
}

void pool_give_blocks(CUmemoryPool pool, uint64_t blocks) {
    pool->cached_blocks += blocks;
    cached_in_all += blocks;
}

void pool_lost_blocks(CUmemoryPool pool, uint64_t blocks) {
    pool->reserved_blocks -= blocks;
}

void pool_count(CUmemoryPool pool, int64_t bytes) {
    bool given_back = bytes < 0;
    uint64_t units = ((uint64_t)(given_back ? -bytes : bytes) + UNIT - 1) & ~(uint64_t)(UNIT - 1);
    if (given_back) {
        pool->used_bytes -= units;
        pool->allocations--;
        return;
    }
    pool->allocations++;
    pool->used_bytes += units;
    if (pool->used_high_bytes < pool->used_bytes) pool->used_high_bytes = pool->used_bytes;
}

void pool_trim_locked(CUmemoryPool pool, uint64_t keep_bytes) {
    uint64_t keep = keep_bytes >> BLOCK_SHIFT;
    if (keep_bytes & (BLOCK - 1)) keep++;
    if (pool->reserved_blocks <= keep) return;
    uint64_t excess = pool->reserved_blocks - keep;
    if (excess > pool->cached_blocks) excess = pool->cached_blocks;
    excess -= excess % grain_of(pool);
    if (excess == 0) return;
    pool->cached_blocks -= excess;
    pool->reserved_blocks -= excess;
    cached_in_all -= excess;
    if (!pool->host) sim_uncharge(&driver.view, driver.device[pool->device].card, SIM_DATA, excess << BLOCK_SHIFT, 0);
}

void pools_synchronized(int device) {
    if (LIKELY(__atomic_load_n(&cached_in_all, __ATOMIC_RELAXED) == 0)) return;
    driver_lock();
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->device == device && pool->cached_blocks) pool_trim_locked(pool, pool->threshold_bytes);
    driver_unlock();
}

void pools_abandoned_locked(int device) {
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->device == device) pool_trim_locked(pool, 0);
}

void pool_bury_locked(CUmemoryPool pool) {
    if (!pool->doomed || pool->allocations) return;
    pool_trim_locked(pool, 0);
    if (pool->object >= 0) sim_object_drop(&driver.view, pool->object);
    CUmemoryPool *link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

CUresult pool_allocate(CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool) {
    driver_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (pool->standard || pool_valid_locked(pool)) {
        struct memory *memory = pool->imported ? NULL : memory_new(MEMORY_POOL, pool->device, current_context);
        if (memory) {
            memory->size = bytes;
            result = memory_take(memory, pool, false);
            if (result == CUDA_SUCCESS)
                *pointer = memory->base;
            else
                memory_recycle(memory);
        }
    }
    driver_unlock();
    return result;
}

int pool_handle_types(CUmemoryPool pool) {
    return (int)pool->properties.handleTypes;
}

void pool_memory_give_locked(struct memory *memory) {
    CUmemoryPool pool = memory->pool;
    memory_give(memory);
    pool_bury_locked(pool);
}
