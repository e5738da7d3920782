/* How one process names its memory to another, as ipc.c, pool_share.c and external.c use it. */
#ifndef SIMGPU_IPC_H
#define SIMGPU_IPC_H

#include "share.h"

/* What a 64-byte handle holds. */
struct ticket {
    uint32_t magic;
    int32_t fd; /* of the data, in the exporter */
    int64_t object;
    uint64_t offset; /* of the exported address in the object */
    uint64_t bytes;
    uint64_t whole_bytes;
    int32_t pid;
    uint32_t slot;
    uint32_t generation; /* of the exporter's slot: tells a process from its successor in the slot */
    uint32_t card;
};

/* Makes the memory an object that other processes may use, and writes its ticket. */
CUresult ticket_write_locked(struct ticket *ticket, struct memory *memory, CUdeviceptr address);
/* Makes the memory of a ticket usable here; again gives the same address and counts one more. */
CUresult ticket_open_locked(CUdeviceptr *pointer, const struct ticket *ticket, CUmemoryPool pool);
/* Counts one less; gives it back with the last. */
bool ticket_close_locked(CUdeviceptr pointer, bool pooled);

#endif
