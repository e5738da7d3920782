/* Charging: reserve first, then ask the driver; give back what the driver refused. */
#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "process.h"

#define VGPU_BLOCK_BYTES (2 * VGPU_MIB)
#define VGPU_SMALL_BYTES (VGPU_BLOCK_BYTES - 1) /* requests of at most so much share blocks */

static inline uint64_t vgpu_whole_blocks(uint64_t bytes) {
    return bytes > UINT64_MAX - VGPU_BLOCK_BYTES ? UINT64_MAX
                                                 : (bytes + VGPU_BLOCK_BYTES - 1) / VGPU_BLOCK_BYTES * VGPU_BLOCK_BYTES;
}

/* Reserves `bytes` on the device (index in the region). CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY; a refusal was counted
 * and reported. */
CUresult vgpu_charge(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes);

/* The same, but a refusal is neither counted nor reported: the caller has another way. */
CUresult vgpu_charge_quietly(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes);

/* Charges what the card has given already, whatever the limit. */
void vgpu_charge_anyway(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes);

/* Gives back. */
void vgpu_uncharge(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes);

/* Counts and reports a refusal of `bytes` that was found out after the driver had granted them. */
CUresult vgpu_refuse(struct vgpu_process *process, int device, uint64_t bytes);

/* Turns a reservation into what the card really took: gives back or charges the difference. If that doesn't fit, the
 * reservation is given back whole and CUDA_ERROR_OUT_OF_MEMORY returned: undo what the driver did. */
CUresult vgpu_settle(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t reserved_bytes,
                     uint64_t actual_bytes);

/* What the device's processes hold together; dead ones were looked for. */
uint64_t vgpu_used(struct vgpu_process *process, int device);

/* Moves this process's bytes into a region that replaced the old one; called by the tick. */
void vgpu_charge_follow_region(struct vgpu_process *process);

#endif
