/* cuInit and kernel launches. */
#include "body.h"

/* Quota and region first: without them the driver isn't started at all. */
CUresult cuInit(unsigned int Flags) {
    if (!vgpu_has(VGPU_FN_cuInit)) return real_cuInit(Flags);
    struct vgpu_process *process = vgpu_enter_as(false);
    if (process->state == VGPU_REFUSED) {
        vgpu_process_retry(process);
        process = vgpu_enter_as(false);
    }
    if (process->state == VGPU_REFUSED) return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = real_cuInit(Flags);
    if (result == CUDA_SUCCESS && vgpu_enter()->state == VGPU_REFUSED) return CUDA_ERROR_NOT_PERMITTED;
    return result;
}

/* Launches are counted for the monitor, which dates the changes: a lost count among threads is no harm, an atomic
 * addition on every launch would be. */
static inline void count_launch(void) {
    struct vgpu_process *process = vgpu_enter_quietly();
    if (__builtin_expect(!process, 0)) return;
    const struct vgpu_member *member = process->member;
    int device = process->index_of[0];
    if (__builtin_expect(process->cuda_devices != 1, 0)) {
        struct vgpu_place place;
        if (!vgpu_place_current(process, &place)) return;
        device = place.device;
    }
    if (__builtin_expect((unsigned)device >= VGPU_MAX_DEVICES, 0)) return;
    uint64_t *launches = &member->region->slots[member->slot].launches[device];
    __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

#define LAUNCH(symbol, parameters, arguments)                                                                          \
    CUresult symbol parameters {                                                                                       \
        count_launch();                                                                                                \
        return real_##symbol arguments;                                                                                \
    }

#define KERNEL                                                                                                         \
    (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,        \
     unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,                    \
     void **kernelParams, void **extra)
#define KERNEL_ARGUMENTS                                                                                               \
    (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams, extra)
#define COOPERATIVE                                                                                                    \
    (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,        \
     unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,                    \
     void **kernelParams)
#define COOPERATIVE_ARGUMENTS                                                                                          \
    (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams)

LAUNCH(cuLaunchKernel, KERNEL, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchKernel_ptsz, KERNEL, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE, COOPERATIVE_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE, COOPERATIVE_ARGUMENTS)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
       (config, f, kernelParams, extra))
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
       (config, f, kernelParams, extra))
LAUNCH(cuLaunchCooperativeKernelMultiDevice,
       (CUDA_LAUNCH_PARAMS * launchParamsList, unsigned int numDevices, unsigned int flags),
       (launchParamsList, numDevices, flags))
LAUNCH(cuLaunch, (CUfunction f), (f))
LAUNCH(cuLaunchGrid, (CUfunction f, int grid_width, int grid_height), (f, grid_width, grid_height))
LAUNCH(cuLaunchGridAsync, (CUfunction f, int grid_width, int grid_height, CUstream hStream),
       (f, grid_width, grid_height, hStream))
