/* Memory pools, as pool.c, pool_api.c and pool_share.c share them. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "memory.h"

struct CUmemPoolHandle_st {
    uint32_t magic;
    int device;
    bool standard; /* the device's own: can't be destroyed */
    bool doomed;   /* destroyed, waits for its last allocation */
    bool imported; /* of another process: nothing can be allocated from it */
    bool host;     /* host memory: nothing of the card */
    bool graphs;   /* the device's reserve for graphs: kept until trimmed */
    CUmemPoolProps properties;
    struct small_heap heap;
    uint64_t reserved_blocks; /* taken from the card */
    uint64_t cached_blocks;   /* of these, not in use */
    uint64_t reserved_high_blocks;
    uint64_t used_bytes; /* as asked for, in units */
    uint64_t used_high_bytes;
    uint64_t threshold_bytes;
    uint64_t allocations;
    int reuse[3];
    CUmemAccess_flags access[SIM_MAX_CARDS];
    int64_t object; /* name under which other processes know it, else -1 */
    struct CUmemPoolHandle_st *next;
};

CUmemoryPool pool_new_locked(int device, const CUmemPoolProps *properties);
bool pool_valid_locked(CUmemoryPool pool);
/* Gives cached blocks back to the card until no more than `keep_bytes` are reserved. */
void pool_trim_locked(CUmemoryPool pool, uint64_t keep_bytes);
/* Frees a destroyed pool once nothing of it is in use. */
void pool_bury_locked(CUmemoryPool pool);
CUmemoryPool pool_of_stream(CUstream stream);
CUresult pool_allocate(CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool);

#endif
