/* When the program waits for the card, pools give back what they needn't keep: the moment to see it. */
#include "body.h"
#include "pool.h"

#define SYNCHRONIZE(symbol, parameters, arguments)                                                                     \
    CUresult symbol parameters {                                                                                       \
        CUresult result = real_##symbol arguments;                                                                     \
        struct vgpu_process *process = vgpu_enter_quietly();                                                           \
        if (process) vgpu_pools_settle(process);                                                                       \
        return result;                                                                                                 \
    }

SYNCHRONIZE(cuCtxSynchronize, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext ctx), (ctx))
SYNCHRONIZE(cuEventSynchronize, (CUevent hEvent), (hEvent))
SYNCHRONIZE(cuStreamSynchronize, (CUstream hStream), (hStream))
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream hStream), (hStream))
