/* Requests below 2 MiB share blocks of 2 MiB, per process and device.
 *
 * Two-level segregated fit over units of 512 bytes: each free run lies in the list of its size class, a bitmap finds
 * the first list that surely fits, neighbours are joined when a run is freed. O(1), whatever is live. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define NONE      UINT32_MAX
#define RUN_USED  0x8000u
#define RUN_UNITS 0x7fffu

struct small_block {
    struct small_heap *heap;
    struct small_block *spare; /* next one, while unused */
    struct memory *memory;     /* of the block itself, MEMORY_SMALLS */
    uint32_t number;           /* in the table of blocks */
    uint16_t run[UNITS];       /* at a run's first and last unit: its length, and whether it is used */
    union {
        struct {
            uint32_t next, previous; /* of a free run: block number << 12 | unit */
        };
        struct memory *memory; /* of a used run */
    } at[UNITS];
};

/* Numbers name blocks in 20 bits, so that a place fits into one word. */
static struct small_block **table;
static uint32_t table_size, table_free = NONE;

static inline struct small_block *block_at(uint32_t place) {
    return table[place >> 12];
}

static bool table_enter(struct small_block *block) {
    if (table_free == NONE) {
        uint32_t size = table_size ? table_size * 2 : 64;
        if (size > 1u << 20) return false;
        struct small_block **larger = realloc(table, size * sizeof *table);
        if (!larger) return false;
        table = larger;
        for (uint32_t i = size; i-- > table_size;) { /* free entries hold the next one's number */
            table[i] = (struct small_block *)(uintptr_t)table_free;
            table_free = i;
        }
        table_size = size;
    }
    block->number = table_free;
    table_free = (uint32_t)(uintptr_t)table[block->number];
    table[block->number] = block;
    return true;
}

static void table_leave(struct small_block *block) {
    table[block->number] = (struct small_block *)(uintptr_t)table_free;
    table_free = block->number;
}

/* Class of a run: 8 classes for each power of two. Runs in a class are at least as long as its lower bound. */
static inline unsigned class_of(uint32_t units) {
    if (units < 8) return units;
    unsigned log = 31 - (unsigned)__builtin_clz(units);
    return (log - 2) * 8 + ((units >> (log - 3)) & 7);
}

static void insert(struct small_block *block, uint32_t unit, uint32_t units) {
    struct small_heap *heap = block->heap;
    unsigned class = class_of(units);
    uint32_t place = block->number << 12 | unit;
    block->run[unit] = block->run[unit + units - 1] = (uint16_t)units;
    block->at[unit].previous = NONE;
    block->at[unit].next = heap->bin[class];
    if (heap->bin[class] != NONE) block_at(heap->bin[class])->at[heap->bin[class] & 0xfff].previous = place;
    heap->bin[class] = place;
    heap->bins_used[class / 64] |= UINT64_C(1) << (class % 64);
}

static void extract(struct small_block *block, uint32_t unit) {
    struct small_heap *heap = block->heap;
    unsigned class = class_of(block->run[unit]);
    uint32_t next = block->at[unit].next, previous = block->at[unit].previous;
    if (next != NONE) block_at(next)->at[next & 0xfff].previous = previous;
    if (previous != NONE)
        block_at(previous)->at[previous & 0xfff].next = next;
    else if ((heap->bin[class] = next) == NONE)
        heap->bins_used[class / 64] &= ~(UINT64_C(1) << (class % 64));
}

void small_heap_init(struct small_heap *heap, int device, CUmemoryPool pool, enum sim_kind kind) {
    *heap = (struct small_heap){.device = device, .pool = pool, .kind = kind};
    memset(heap->bin, 0xff, sizeof heap->bin);
}

bool heaps_init(int device) {
    struct small_heap *heaps = calloc(3 + ARRAY_HEAPS, sizeof *heaps);
    if (!heaps) return false;
    small_heap_init(&heaps[0], device, NULL, SIM_DATA);
    small_heap_init(&heaps[1], device, NULL, SIM_DATA);
    small_heap_init(&heaps[2], device, NULL, SIM_MODULE);
    for (unsigned i = 0; i < ARRAY_HEAPS; i++)
        small_heap_init(&heaps[3 + i], device, NULL, SIM_DATA);
    driver.device[device].heap = &heaps[0];
    driver.device[device].low_heap = &heaps[1];
    driver.device[device].module_heap = &heaps[2];
    driver.device[device].array_heap = &heaps[3];
    return true;
}

static uint32_t find_run(struct small_heap *heap, uint32_t units) {
    /* In the request's own class the first run may be too short; any run of a higher class fits. */
    unsigned class = class_of(units);
    uint32_t place = heap->bin[class];
    if (place != NONE && block_at(place)->run[place & 0xfff] >= units) return place;
    for (unsigned from = class + 1; from < 128; from = (from / 64 + 1) * 64) {
        uint64_t bits = heap->bins_used[from / 64] & (~UINT64_C(0) << (from % 64));
        if (bits) return heap->bin[from / 64 * 64 + (unsigned)__builtin_ctzll(bits)];
    }
    for (; place != NONE; place = block_at(place)->at[place & 0xfff].next)
        if (block_at(place)->run[place & 0xfff] >= units) return place;
    return NONE;
}

/* Bookkeeping of blocks given back, for the next ones: what it says about used units stays true. */
static struct small_block *spare;
static unsigned spares;

static struct small_block *block_new(void) {
    struct small_block *block = spare;
    if (!block) return calloc(1, sizeof *block);
    spare = block->spare;
    spares--;
    return block;
}

static void block_free(struct small_block *block) {
    if (spares == 16) {
        free(block);
        return;
    }
    block->spare = spare;
    spare = block;
    spares++;
}

static CUresult add_block(struct small_heap *heap, CUcontext context, bool low) {
    struct memory *memory = memory_new(MEMORY_SMALLS, heap->device, context);
    struct small_block *block = block_new();
    if (!memory || !block || !table_enter(block)) {
        if (block) block_free(block);
        if (memory) memory_recycle(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->heap = heap;
    block->memory = memory;
    memory->extra = block;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (heap->pool)
        result = pool_take_blocks(heap->pool, 1);
    else if (sim_charge(&driver.view, driver.device[heap->device].card, heap->kind, BLOCK, 0) == 0)
        result = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && !(memory->base = arena_take(1, 1, low))) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        if (heap->pool)
            pool_give_blocks(heap->pool, 1);
        else
            sim_uncharge(&driver.view, driver.device[heap->device].card, heap->kind, BLOCK, 0);
    }
    if (result != CUDA_SUCCESS) {
        table_leave(block);
        block_free(block);
        memory_recycle(memory);
        return result;
    }
    memory->blocks = 1;
    memory->size = BLOCK;
    memory->pool = heap->pool;
    memory->charged_bytes = BLOCK;
    arena_set(memory->base, memory);
    insert(block, 0, UNITS);
    return CUDA_SUCCESS;
}

static void remove_block(struct small_block *block) {
    struct small_heap *heap = block->heap;
    struct memory *memory = block->memory;
    extract(block, 0);
    memory_forget(memory);
    arena_clear(memory->base);
    arena_give(memory->base, 1);
    if (memory->object >= 0) {
        sim_object_drop(&driver.view, memory->object);
        if (heap->pool) pool_lost_blocks(heap->pool, 1);
    } else if (heap->pool)
        pool_give_blocks(heap->pool, 1);
    else
        sim_uncharge(&driver.view, driver.device[heap->device].card, heap->kind, BLOCK, 0);
    table_leave(block);
    block_free(block);
    memory_recycle(memory);
}

CUresult small_take(struct small_heap *heap, struct memory *memory, bool low) {
    uint32_t units = (uint32_t)((memory->size + UNIT - 1) / UNIT);
    uint32_t place = find_run(heap, units);
    if (place == NONE) {
        TRY(add_block(heap, memory->context, low));
        place = find_run(heap, units);
    }
    struct small_block *block = block_at(place);
    uint32_t unit = place & 0xfff, length = block->run[unit];
    extract(block, unit);
    if (length > units) insert(block, unit + units, length - units);
    block->run[unit] = block->run[unit + units - 1] = (uint16_t)(units | RUN_USED);
    /* A unit marked as used names its memory or nothing, never the links of an earlier free run. */
    block->at[unit + units - 1].memory = NULL;
    block->at[unit].memory = memory;
    memory->home = block;
    memory->base = block->memory->base + (uint64_t)unit * UNIT;
    return CUDA_SUCCESS;
}

void small_give(struct memory *memory) {
    struct small_block *block = memory->home;
    uint32_t unit = (uint32_t)((memory->base - block->memory->base) / UNIT);
    uint32_t units = block->run[unit] & RUN_UNITS;
    block->at[unit].memory = NULL;
    if (unit > 0 && !(block->run[unit - 1] & RUN_USED)) {
        uint32_t before = block->run[unit - 1];
        unit -= before;
        units += before;
        extract(block, unit);
    }
    if (unit + units < UNITS && !(block->run[unit + units] & RUN_USED)) {
        uint32_t after = block->run[unit + units];
        extract(block, unit + units);
        units += after;
    }
    insert(block, unit, units);
    if (units == UNITS) remove_block(block);
}

struct memory *small_find(struct memory *memory, CUdeviceptr address) {
    struct small_block *block = memory->extra;
    uint32_t wanted = (uint32_t)((address - memory->base) / UNIT);
    struct memory *exact = block->run[wanted] & RUN_USED ? block->at[wanted].memory : NULL;
    if (exact && exact->base == address) return exact;
    for (uint32_t unit = 0; unit < UNITS;) { /* a pointer into the middle: walk over the runs */
        uint32_t units = block->run[unit] & RUN_UNITS;
        if (wanted < unit + units) {
            bool used = block->run[unit] & RUN_USED;
            struct memory *found = used ? block->at[unit].memory : NULL;
            return found && address < found->base + found->size ? found : NULL;
        }
        unit += units;
    }
    return NULL;
}

void small_touch(struct memory *memory) {
    memory->home->memory->touched = true;
}
