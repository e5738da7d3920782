/* VMM allocations, for the files whose objects hold references to them: imports, sparse arrays, multicast objects. */
#ifndef VGPU_VMM_H
#define VGPU_VMM_H

#include "process.h"

/* With vmm_lock. The size of an imported allocation shows only when it is mapped: charges what isn't charged yet. */
CUresult vgpu_vmm_learn_size(struct vgpu_process *process, uint64_t number, uint64_t bytes);

/* Gives a new allocation its number and its first handle. With vmm_lock. false: no memory. */
bool vgpu_vmm_enter(struct vgpu_process *process, CUmemGenericAllocationHandle handle, const struct vgpu_entry *fresh);

/* The number of the allocation behind a handle, or behind a mapped address; 0 if it isn't known. With vmm_lock. */
uint64_t vgpu_vmm_of_handle(struct vgpu_process *process, CUmemGenericAllocationHandle handle);
uint64_t vgpu_vmm_of_address(struct vgpu_process *process, CUdeviceptr address);

/* An object (an array, a multicast object) holds the allocation at `place`, instead of what it held there before. With
 * vmm_lock. */
void vgpu_vmm_hold(struct vgpu_process *process, uint64_t object, int device, uint64_t place, uint64_t number);

/* The object lets go of what it holds on the device (-1: any) at places from `place` on. With vmm_lock. */
void vgpu_vmm_let_go(struct vgpu_process *process, uint64_t object, int device, uint64_t place, uint64_t places);

/* An array died. Takes vmm_lock. */
void vgpu_vmm_forget_array(struct vgpu_process *process, uint64_t array);

#endif
