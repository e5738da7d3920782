/* Requests below 2 MiB share 2 MiB blocks. Which block the driver chose for linear memory shows in the address it
 * returned, so the blocks are counted as the card holds them, without a model of the driver's allocator: a block is
 * charged with its first request and given back with its last.
 *
 * Arrays have no address. Charged is the most blocks that can hold them, whatever the order in which holes came and
 * went; all that is taken for granted of the driver is that it opens a block only when no hole in those that it has for
 * elements of this size (a shelf) is large enough, and that it puts a request beside others and not into the middle of
 * a hole. Where NVML lists this process, its figure tells how much of that isn't there. */
#ifndef VGPU_SMALL_H
#define VGPU_SMALL_H

#include "context.h"

/* Runs `allocate(data, &pointer)`, which asks the driver for `bytes` (at most VGPU_SMALL_BYTES), and accounts for it.
 * The pointer goes to `out` where that succeeds. */
CUresult vgpu_small_allocate(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                             CUresult (*allocate)(const void *data, CUdeviceptr *pointer), const void *data,
                             CUdeviceptr *out);

/* The driver has freed the request that `entry` (of VGPU_POINTERS) stands for. */
void vgpu_small_freed(struct vgpu_process *process, const struct vgpu_entry *entry);

/* With small_lock: reserves what an array of `bytes` may take, before the driver is asked. `shelf`: log2 of the bytes
 * of an element, the last one where that isn't known. */
CUresult vgpu_small_array_reserve(struct vgpu_process *process, int device, int shelf, uint64_t bytes);

/* An array of `bytes` is gone, or didn't come. */
void vgpu_small_array_freed(struct vgpu_process *process, int device, int shelf, uint64_t bytes);

/* After an array, or the last linear request of a block, came or went: gives back what is charged for arrays beyond
 * what the card holds, where the card can be asked. The caller holds no lock. */
void vgpu_small_true_up(struct vgpu_process *process, int device);

#endif
