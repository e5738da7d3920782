/* Physical memory apart from addresses, as vmm.c, vmm_map.c, multicast.c and external.c share it. */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "share.h"

struct physical {
    CUmemGenericAllocationHandle handle;
    int device; /* -1: host memory, not of the card */
    uint64_t bytes;
    CUmemAllocationProp properties;
    unsigned references; /* of handles: created, retained, imported */
    unsigned maps;       /* of addresses, arrays, multicast objects */
    int64_t object;      /* once exported or imported, else -1 */
    int fd;              /* of its own data, -1: part of the process's common one */
    uint64_t offset;     /* of the data in there */
    bool multicast;
    unsigned devices; /* of a multicast object: how many may join, and the mask of who did */
    uint32_t joined;
    struct binding *bindings;
};

struct physical *physical_find_locked(CUmemGenericAllocationHandle handle);
struct physical *physical_new_locked(int device, uint64_t bytes, const CUmemAllocationProp *properties);
/* What is mapped at an address, and where in it that lies (vmm_map.c); NULL if nothing. */
struct physical *physical_at_locked(CUdeviceptr address, uint64_t *offset);
/* Frees it once neither a handle nor a mapping is left. */
void physical_settle_locked(struct physical *physical);
/* Makes the data behind the physical memory appear at an address; arena_replace takes it away. */
void physical_show(const struct physical *physical, CUdeviceptr at, uint64_t offset, uint64_t bytes);

/* Lets go of what is bound to a multicast object that dies (multicast.c). */
void multicast_release_locked(struct physical *object);

static inline bool granular(uint64_t bytes) {
    return bytes != 0 && (bytes & (BLOCK - 1)) == 0;
}

#endif
