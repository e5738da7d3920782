/* Requests below 1 MiB share 2 MiB blocks. Which block the driver chose shows in the address it returned, so the blocks
 * are counted as the card holds them, without a model of the driver's allocator: a block is charged with its first
 * request and given back with its last. */
#ifndef VGPU_SMALL_H
#define VGPU_SMALL_H

#include "context.h"

/* Runs `allocate(data, &pointer)`, which asks the driver for `bytes` (below VGPU_SMALL_BYTES), and accounts for it. The
 * pointer goes to `out` where that succeeds. */
CUresult vgpu_small_allocate(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                             CUresult (*allocate)(const void *data, CUdeviceptr *pointer), const void *data,
                             CUdeviceptr *out);

/* The driver has freed the request that `entry` (of VGPU_POINTERS) stands for. */
void vgpu_small_freed(struct vgpu_process *process, const struct vgpu_entry *entry);

#endif
