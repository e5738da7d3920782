/* cuInit. */
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
