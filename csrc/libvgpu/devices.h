/* One device is one device, by UUID, everywhere: CUDA's ordinal (CUDA_VISIBLE_DEVICES picks and reorders), NVML's index
 * and the index in the region. */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "nvml_api.h"
#include "process.h"

/* Enters what NVML sees into the region, in NVML's order, MIG devices in the place of the card that they are parts of.
 * Nothing happens where there is no NVML. */
void vgpu_devices_from_nvml(struct vgpu_process *process);

/* The next MIG device of a card that can be seen here, looked for from *from on. */
bool vgpu_devices_next_instance(nvmlDevice_t card, unsigned int *from, nvmlDevice_t *instance);

/* Maps the driver's devices to the region's. CUDA_SUCCESS, the driver's own error (not initialised), or
 * CUDA_ERROR_NOT_PERMITTED if the region has no place for them. */
CUresult vgpu_devices_from_cuda(struct vgpu_process *process);

/* Decides the limit of every known device and publishes it. NULL, or a sentence that says why a quota is unusable. */
const char *vgpu_devices_decide(struct vgpu_process *process);

/* Index in the region of the device with this UUID ("GPU-…"), or -1. */
int vgpu_devices_find(const struct vgpu_process *process, const char *uuid);

#endif
