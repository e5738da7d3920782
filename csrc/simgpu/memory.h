/* Device memory as one process sees it: addresses, blocks, and what each allocation is.
 *
 * Owns: the device address space (arena.c), the blocks that small requests share (small.c), and the record of every
 * allocation (memory.c). All functions expect driver.lock to be held unless they say otherwise.
 *
 * Device addresses are real addresses of a large lazily touched reservation, so that copies carry data without any
 * bookkeeping: what is never written costs nothing. */
#ifndef SIMGPU_MEMORY_H
#define SIMGPU_MEMORY_H

#include "driver.h"

#define BLOCK       SIM_BLOCK_BYTES
#define BLOCK_SHIFT 21
#define UNIT        512u /* what small requests are rounded to */
#define UNITS       (BLOCK / UNIT)
#define SMALL_LIMIT (BLOCK - 1) /* larger requests take whole blocks */

/* Data beyond this offset of an allocation isn't kept: memory of gigabytes can be "written" on a small machine. */
#define KEPT_BYTES (UINT64_C(256) << 20)

enum memory_kind {
    MEMORY_FREE,
    MEMORY_LINEAR, /* cuMemAlloc, cuMemAllocPitch */
    MEMORY_MANAGED,
    MEMORY_POOL,     /* cuMemAllocAsync and its family */
    MEMORY_GRAPH,    /* address of a graph's allocation node */
    MEMORY_ARRAY,    /* behind an array: no pointer of the program's */
    MEMORY_IMPORTED, /* cuIpcOpenMemHandle, cuMemPoolImportPointer, external memory */
    MEMORY_MODULE,   /* a module's code and globals */
    MEMORY_RESERVED, /* cuMemAddressReserve: addresses only */
    MEMORY_SMALLS,   /* a block that small requests share; never given out itself */
};

struct small_block;
struct small_heap;

struct memory {
    CUdeviceptr base;
    uint64_t size;   /* as asked for */
    uint32_t blocks; /* address blocks taken, 0 for a small request */
    uint8_t kind;
    uint8_t device;
    bool touched; /* data may have been written: pages to drop when freed */
    bool shown;   /* pages of a file lie there instead of our own, see ipc.c */
    CUcontext context;
    struct small_block *home; /* of a small request */
    CUmemoryPool pool;        /* MEMORY_POOL */
    int64_t object;           /* of exported and imported memory, else -1 */
    int fd;                   /* of an exported one's data, else -1 */
    uint64_t charged_bytes;   /* given back when freed */
    uint64_t id;              /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    void *extra;              /* MEMORY_SMALLS: struct small_block; MEMORY_GRAPH: its graph memory; MEMORY_ARRAY: its
                               * heap */
    unsigned imports;         /* MEMORY_IMPORTED: times opened */
    unsigned flags;           /* as given by the program: attach flags of managed memory */
    int prefer;               /* managed: device that the program prefers, else -1 */
    bool sync_memops;
};

/* ---- addresses (arena.c) ---- */

/* Reserves the address space on first use. 0 or -ENOMEM. */
int arena_init(void);
/* Blocks of address space aligned to `align_blocks` (a power of two). `low` asks for addresses below 4 GiB, which the
 * oldest functions need. 0 where there is none. */
CUdeviceptr arena_take(uint64_t blocks, uint64_t align_blocks, bool low);
CUdeviceptr arena_take_at(CUdeviceptr wanted, uint64_t blocks);
void arena_give(CUdeviceptr base, uint64_t blocks);
/* Names the memory that begins at this block. */
void arena_set(CUdeviceptr base, struct memory *memory);
void arena_clear(CUdeviceptr base);
/* The memory whose blocks cover the address, small ones by their MEMORY_SMALLS; NULL outside. */
struct memory *arena_find(CUdeviceptr address);
bool arena_covers(CUdeviceptr address);
/* Makes a range's pages zero again: drops our own, or puts ours where a file's were. */
void arena_drop(CUdeviceptr base, uint64_t bytes);
void arena_replace(CUdeviceptr base, uint64_t bytes);

/* ---- small requests (small.c) ---- */

struct small_heap {
    uint64_t bins_used[2];
    uint32_t bin[128];
    int device;
    CUmemoryPool pool; /* takes its blocks from here, else from the card */
    enum sim_kind kind;
};

/* Finds room for memory->size bytes, taking a block if needed. OUT_OF_MEMORY where the card has none. */
CUresult small_take(struct small_heap *heap, struct memory *memory, bool low);
void small_give(struct memory *memory);
void small_touch(struct memory *memory);
struct memory *small_find(struct memory *block, CUdeviceptr address);
#define ARRAY_HEAPS 5 /* texels of 1, 2, 4, 8 and 16 bytes */
/* The device's heaps, made once; false without host memory. */
bool heaps_init(int device);
void small_heap_init(struct small_heap *heap, int device, CUmemoryPool pool, enum sim_kind kind);

/* ---- records (memory.c) ---- */

struct memory *memory_new(enum memory_kind kind, int device, CUcontext context);
void memory_recycle(struct memory *memory);
/* The allocation that an address lies in, NULL if none. */
struct memory *memory_find(CUdeviceptr address);
/* Takes blocks and addresses: `pool` NULL takes from the card. Counts one request. */
CUresult memory_take(struct memory *memory, CUmemoryPool pool, bool low);
/* Gives back what memory_take took and recycles the record. */
void memory_give(struct memory *memory);
/* Data was written: the pages are dropped when the memory is freed. */
void memory_touch(struct memory *memory);
/* Drops the data of memory that is given back. */
void memory_forget(struct memory *memory);
/* Visits every record in use. */
void memory_each(void (*visit)(struct memory *, void *), void *argument);
/* Blocks that a request of this size takes, 0 where it shares. */
static inline uint64_t blocks_of(uint64_t bytes) {
    return bytes > SMALL_LIMIT ? (bytes + BLOCK - 1) >> BLOCK_SHIFT : 0;
}

/* ---- pools (pool.c) ---- */
CUresult pool_take_blocks(CUmemoryPool pool, uint64_t blocks);
void pool_give_blocks(CUmemoryPool pool, uint64_t blocks);
/* The blocks went to an object that other processes may hold: they are no longer the pool's. */
void pool_lost_blocks(CUmemoryPool pool, uint64_t blocks);
void pool_count(CUmemoryPool pool, int64_t bytes);
struct small_heap *pool_heap(CUmemoryPool pool);
int pool_handle_types(CUmemoryPool pool);
/* Frees an allocation of a pool, and the pool with it where that was destroyed already. */
void pool_memory_give_locked(struct memory *memory);
bool pool_init_device(int device);
/* Everything queued is over: pools keep no more than their threshold. */
void pools_synchronized(int device);

/* ---- kinds with a life of their own ---- */
void managed_give_locked(struct memory *memory); /* managed.c */
CUresult managed_resident_locked(struct memory *memory, uint64_t bytes);
void import_give_locked(struct memory *memory);       /* ipc.c */
bool graph_memory_free_locked(struct memory *memory); /* graph_memory.c */

#endif
