/* Local memory of kernels. A context has room on the card for so many bytes of it for every thread that the card can
 * run at once, and the driver makes more room at the first launch of a kernel that needs more: gigabytes at 16 KiB a
 * thread. So kernels with much local memory are known by their handles, and their launches are looked at. */
#ifndef VGPU_LAUNCH_H
#define VGPU_LAUNCH_H

#include "context.h"
#include "hooks.h"
#include "measure.h"

/* A function or kernel was handed to the program: notes how much local memory it needs. */
void vgpu_launch_learn_function(struct vgpu_process *process, CUfunction function);
void vgpu_launch_learn_kernel(struct vgpu_process *process, CUkernel kernel);

/* Is any known that needs more than each context has from the beginning? */
static inline bool vgpu_launch_any(const struct vgpu_process *process) {
    return __builtin_expect(__atomic_load_n(&process->tables[VGPU_KERNELS_DEEP].count, __ATOMIC_RELAXED) != 0, 0);
}

/* The same of whatever can be launched, whose need is known. */
void vgpu_launch_learn(struct vgpu_process *process, const void *handle, uint64_t local_bytes);

/* Bytes of local memory for each thread that the function, kernel or executable graph needs, 0 if none that matters. */
uint64_t vgpu_launch_local_bytes(struct vgpu_process *process, const void *handle);

/* The program has set how much each thread gets; `shrunk`: and the card has taken some back. */
void vgpu_launch_limit_set(struct vgpu_process *process, const struct vgpu_place *place, uint64_t local_bytes,
                           bool shrunk);

/* A graph that will need so much was made executable: the room is charged now, whenever it is launched.
 * CUDA_ERROR_OUT_OF_MEMORY if that is too much. */
CUresult vgpu_launch_expect(struct vgpu_process *process, uint64_t local_bytes);

/* A launch that needs more room than there is: reserved, done, measured. */
struct vgpu_growth {
    struct vgpu_process *process; /* NULL: it needs none */
    struct vgpu_place place;
    struct vgpu_measure before;
    uint64_t local_bytes, reserved_bytes;
};

/* Before a launch of anything by its handle, and, where that succeeded, after it. In between birth_lock is held if it
 * needs room, so that no request may be in flight yet. CUDA_ERROR_OUT_OF_MEMORY: the room doesn't fit. */
CUresult vgpu_launch_begin(struct vgpu_growth *growth, const void *handle, CUstream stream);
void vgpu_launch_end(const struct vgpu_growth *growth, CUresult result);

#endif
