/* Contexts that this process has: which device each is on, what it was charged, what dies with it. */
#ifndef VGPU_CONTEXT_H
#define VGPU_CONTEXT_H

#include "process.h"

/* Where a call of this thread allocates. */
struct vgpu_place {
    int device;       /* index in the region */
    uint16_t context; /* number of the context, 0: not tracked */
    CUcontext handle;
};

/* The slow half of vgpu_place_current(). */
bool vgpu_place_of_unknown(struct vgpu_process *process, CUcontext handle, struct vgpu_place *place);

/* The calling thread's current context. false if it has none: the driver's own answer is wanted. A number is the
 * context's place + 1; a handle that is in a place stays there while the context lives, so no lock is needed. */
static inline bool vgpu_place_from(struct vgpu_process *process, CUcontext handle, struct vgpu_place *place) {
    uint32_t count = __atomic_load_n(&process->context_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count; i++)
        if (__atomic_load_n(&process->contexts[i].handle, __ATOMIC_ACQUIRE) == handle) {
            place->device = process->contexts[i].device;
            place->context = (uint16_t)(i + 1);
            place->handle = handle;
            return true;
        }
    return vgpu_place_of_unknown(process, handle, place);
}

bool vgpu_place_current(struct vgpu_process *process, struct vgpu_place *place);

/* Where work in a stream is done. */
bool vgpu_place_of_stream(struct vgpu_process *process, CUstream stream, struct vgpu_place *place);

/* CUDA's ordinal of a device, -1 if it has none. */
int vgpu_device_ordinal(const struct vgpu_process *process, int device);

/* Index of the device that a location is on, -1 for host memory. */
int vgpu_device_of_location(struct vgpu_process *process, const CUmemLocation *location);

/* Makes a context known; its number, or 0 if there are too many (then its memory isn't given back with it, only one by
 * one). */
uint16_t vgpu_context_enter(struct vgpu_process *process, const struct vgpu_context *context);

/* Number of a known context, or of a device's primary context; else 0. */
uint16_t vgpu_context_number(const struct vgpu_process *process, CUcontext handle);
uint16_t vgpu_context_primary(const struct vgpu_process *process, int device);

/* Does this process have a context on the device? */
bool vgpu_context_any(const struct vgpu_process *process, int device);

/* Gives back everything that died with a context but its modules, and forgets it. */
void vgpu_context_died(struct vgpu_process *process, uint16_t number);

/* The same for a reset, after which the context itself lives on. */
void vgpu_context_emptied(struct vgpu_process *process, uint16_t number);

/* Adds to what is charged for a context (its heap, printf buffer, local memory). */
void vgpu_context_grew(struct vgpu_process *process, uint16_t number, uint64_t bytes);

/* Takes from it; how much of `bytes` there was to take. All of it where the context isn't tracked. */
uint64_t vgpu_context_shrank(struct vgpu_process *process, uint16_t number, uint64_t bytes);

#endif
