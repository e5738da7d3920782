/* Records of allocations, and taking and giving back what stands behind them. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLAB 512u

static struct slab {
    struct slab *next;
    struct memory record[SLAB];
} *slabs;

static struct memory *recycled; /* linked through `extra` */

static bool grow(void) {
    struct slab *slab = calloc(1, sizeof *slab);
    if (!slab) return false;
    slab->next = slabs;
    slabs = slab;
    for (unsigned i = SLAB; i-- > 0;) {
        slab->record[i].extra = recycled;
        recycled = &slab->record[i];
    }
    return true;
}

struct memory *memory_new(enum memory_kind kind, int device, CUcontext context) {
    if (!recycled && !grow()) return NULL;
    struct memory *memory = recycled;
    recycled = memory->extra;
    *memory = (struct memory){.kind = (uint8_t)kind,
                              .device = (uint8_t)device,
                              .context = context,
                              .object = -1,
                              .fd = -1,
                              .prefer = -1,
                              .id = next_id()};
    return memory;
}

void memory_recycle(struct memory *memory) {
    memory->kind = MEMORY_FREE;
    memory->extra = recycled;
    recycled = memory;
}

void memory_each(void (*visit)(struct memory *, void *), void *argument) {
    for (struct slab *slab = slabs; slab; slab = slab->next)
        for (unsigned i = 0; i < SLAB; i++)
            if (slab->record[i].kind != MEMORY_FREE) visit(&slab->record[i], argument);
}

struct memory *memory_find(CUdeviceptr address) {
    struct memory *memory = arena_find(address);
    return memory && memory->kind == MEMORY_SMALLS ? small_find(memory, address) : memory;
}

static CUresult take_blocks(struct memory *memory, CUmemoryPool pool, uint64_t blocks, bool low) {
    unsigned card = driver.device[memory->device].card;
    enum sim_kind kind = memory->kind == MEMORY_MODULE ? SIM_MODULE : SIM_DATA;
    if (pool) {
        TRY(pool_take_blocks(pool, blocks));
        sim_count_request(&driver.view, card, 1);
    } else if (sim_charge(&driver.view, card, kind, blocks << BLOCK_SHIFT, 1) < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->base = arena_take(blocks, 1, low);
    if (memory->base) {
        memory->blocks = (uint32_t)blocks;
        memory->charged_bytes = blocks << BLOCK_SHIFT;
        arena_set(memory->base, memory);
        return CUDA_SUCCESS;
    }
    if (pool) {
        pool_give_blocks(pool, blocks);
        sim_count_request(&driver.view, card, -1);
    } else {
        sim_uncharge(&driver.view, card, kind, blocks << BLOCK_SHIFT, 1);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_take(struct memory *memory, CUmemoryPool pool, bool low) {
    struct device *device = &driver.device[memory->device];
    uint64_t blocks = blocks_of(memory->size);
    memory->pool = pool;
    if (blocks) {
        TRY(take_blocks(memory, pool, blocks, low));
    } else {
        struct small_heap *heap = pool                            ? pool_heap(pool)
                                  : memory->kind == MEMORY_MODULE ? device->module_heap
                                  : memory->kind == MEMORY_ARRAY  ? memory->extra
                                  : low                           ? device->low_heap
                                                                  : device->heap;
        TRY(small_take(heap, memory, low));
        sim_count_request(&driver.view, device->card, 1);
    }
    if (pool) pool_count(pool, (int64_t)memory->size);
    return CUDA_SUCCESS;
}

void memory_give(struct memory *memory) {
    unsigned card = driver.device[memory->device].card;
    uint64_t blocks = memory->blocks;
    if (memory->pool) pool_count(memory->pool, -(int64_t)memory->size);
    if (!blocks) {
        small_give(memory);
        sim_count_request(&driver.view, card, -1);
        memory_recycle(memory);
        return;
    }
    memory_forget(memory);
    arena_clear(memory->base);
    arena_give(memory->base, blocks);
    if (memory->object >= 0) {
        sim_object_drop(&driver.view, memory->object);
        sim_count_request(&driver.view, card, -1);
        if (memory->pool) pool_lost_blocks(memory->pool, blocks);
    } else if (memory->pool) {
        pool_give_blocks(memory->pool, blocks);
        sim_count_request(&driver.view, card, -1);
    } else {
        sim_uncharge(&driver.view, card, memory->kind == MEMORY_MODULE ? SIM_MODULE : SIM_DATA, memory->charged_bytes,
                     1);
    }
    memory_recycle(memory);
}

void memory_forget(struct memory *memory) {
    uint64_t bytes = (uint64_t)memory->blocks << BLOCK_SHIFT;
    if (UNLIKELY(memory->shown))
        arena_replace(memory->base, bytes);
    else if (memory->touched)
        arena_drop(memory->base, bytes);
    if (UNLIKELY(memory->fd >= 0)) close(memory->fd);
}

void memory_touch(struct memory *memory) {
    memory->touched = true;
    if (memory->home) small_touch(memory);
}
