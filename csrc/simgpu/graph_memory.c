/* Memory of graphs: an allocation node has addresses from the start and takes memory of the card whenever its graph
 * runs. It comes from a reserve of the device, and goes back there when freed: only cuDeviceGraphMemTrim gives the
 * reserve back to the card. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "pool.h"

struct state {
    unsigned holders; /* graphs and instances that name it, and the program while it is taken */
    bool taken;
};

struct memory *graph_memory_new_locked(int device, uint64_t bytes) {
    struct memory *memory = memory_new(MEMORY_GRAPH, device, current_context);
    struct state *state = calloc(1, sizeof *state);
    uint64_t blocks = (bytes + BLOCK - 1) >> BLOCK_SHIFT;
    if (!memory || !state || !(memory->base = arena_take(blocks, 1, false))) {
        free(state);
        if (memory) memory_recycle(memory);
        return NULL;
    }
    state->holders = 1;
    memory->size = bytes;
    memory->blocks = (uint32_t)blocks;
    memory->extra = state;
    arena_set(memory->base, memory);
    return memory;
}

void graph_memory_hold_locked(struct memory *memory) {
    ((struct state *)memory->extra)->holders++;
}

void graph_memory_drop_locked(struct memory *memory) {
    struct state *state = memory->extra;
    if (--state->holders) return;
    memory_forget(memory);
    arena_clear(memory->base);
    arena_give(memory->base, memory->blocks);
    free(state);
    memory_recycle(memory);
}

bool graph_memory_taken(const struct memory *memory) {
    return ((const struct state *)memory->extra)->taken;
}

CUresult graph_memory_take_locked(struct memory *memory) {
    struct device *device = &driver.device[memory->device];
    struct state *state = memory->extra;
    TRY(pool_take_blocks(device->graph_pool, memory->blocks));
    pool_count(device->graph_pool, (int64_t)memory->size);
    sim_count_request(&driver.view, device->card, 1);
    state->taken = true;
    state->holders++;
    return CUDA_SUCCESS;
}

bool graph_memory_free_locked(struct memory *memory) {
    struct device *device = &driver.device[memory->device];
    struct state *state = memory->extra;
    if (!state->taken) return false;
    state->taken = false;
    pool_give_blocks(device->graph_pool, memory->blocks);
    pool_count(device->graph_pool, -(int64_t)memory->size);
    sim_count_request(&driver.view, device->card, -1);
    graph_memory_drop_locked(memory);
    return true;
}

CUAPI(cuDeviceGraphMemTrim, (CUdevice device)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    pool_trim_locked(driver.device[device].graph_pool, 0);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct CUmemPoolHandle_st *pool = driver.device[device].graph_pool;
    uint64_t numbers[] = {pool->used_bytes, pool->used_high_bytes, pool->reserved_blocks << BLOCK_SHIFT,
                          pool->reserved_high_blocks << BLOCK_SHIFT};
    memcpy(value, &numbers[attribute], sizeof numbers[0]);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceSetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value)) {
    ENTER();
    uint64_t number;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&number, value, sizeof number);
    if (number != 0) return CUDA_ERROR_INVALID_VALUE; /* high-water marks can only be reset */
    driver_lock();
    CUmemoryPool pool = driver.device[device].graph_pool;
    CUresult result = CUDA_SUCCESS;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pool->used_high_bytes = pool->used_bytes;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high_blocks = pool->reserved_blocks;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}
