/* Kernel launches: nothing is computed, the launch is counted and lasts as long as its function says. */
#include <string.h>

#include "module.h"
#include "stream.h"

/* One thread of the process counts without an atomic addition, which would cost more than all the rest. */
static __thread char self __attribute__((tls_model("initial-exec")));
static char *counter;

static inline void launch_count(CUcontext context) {
    struct sim_view *view = &driver.view;
    struct sim_holding *holding = &view->state->slot[view->slot].holding[driver.device[context->device].card];
    char *owner = __atomic_load_n(&counter, __ATOMIC_RELAXED);
    if (LIKELY(owner == &self) || (owner == NULL && __atomic_compare_exchange_n(&counter, &owner, &self, false,
                                                                                __ATOMIC_RELAXED, __ATOMIC_RELAXED)))
        __atomic_store_n(&holding->launches, holding->launches + 1, __ATOMIC_RELAXED);
    else
        __atomic_fetch_add(&holding->other_launches, 1, __ATOMIC_RELAXED);
}

void launch_counted(CUcontext context) {
    launch_count(context);
}

static inline CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, CUstream stream) {
    if (UNLIKELY(!function || function->magic != FUNCTION_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    if (UNLIKELY(x == 0 || y == 0 || z == 0)) return CUDA_ERROR_INVALID_VALUE;
    TRY(stream_check(stream));
    struct capture *capture = stream_capture(stream);
    if (UNLIKELY(capture != NULL)) return capture_node(capture, CU_GRAPH_NODE_TYPE_KERNEL, function);
    if (UNLIKELY(function->library != NULL)) TRY(function_ready(function));
    if (UNLIKELY(function->local_bytes > current_context->local_bytes))
        TRY(room_for_local(current_context, function->local_bytes));
    launch_count(current_context);
    if (UNLIKELY(function->ns != 0)) stream_work(stream, function->ns);
    return CUDA_SUCCESS;
}

CUAPI(cuLaunchKernel,
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra)) {
    (void)shared_bytes, (void)parameters, (void)extra;
    ENTER_CONTEXT();
    if (UNLIKELY(block_x == 0 || block_y == 0 || block_z == 0)) return CUDA_ERROR_INVALID_VALUE;
    return launch(function, grid_x, grid_y, grid_z, stream);
}

CUAPI(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)) {
    (void)parameters, (void)extra;
    ENTER_CONTEXT();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    return launch(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->hStream);
}

CUAPI(cuLaunchCooperativeKernel,
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters)) {
    (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes, (void)parameters;
    ENTER_CONTEXT();
    return launch(function, grid_x, grid_y, grid_z, stream);
}

CUAPI(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS * launches, unsigned count, unsigned flags)) {
    (void)flags;
    ENTER_CONTEXT();
    if (!launches || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        TRY(launch(launches[i].function, launches[i].gridDimX, launches[i].gridDimY, launches[i].gridDimZ,
                   launches[i].hStream));
    return CUDA_SUCCESS;
}

CUAPI(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *user_data)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = stream_capture(stream);
    if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_HOST, NULL);
    function(user_data);
    return CUDA_SUCCESS;
}

/* ---- launches of CUDA 2 and 3: the function carries its state ---- */

CUAPI(cuFuncSetBlockShape, (CUfunction function, int x, int y, int z)) {
    ENTER_CONTEXT();
    if (!function || function->magic != FUNCTION_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    return x > 0 && y > 0 && z > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuFuncSetSharedSize, (CUfunction function, unsigned bytes)) {
    (void)bytes;
    ENTER_CONTEXT();
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuParamSetSize, (CUfunction function, unsigned bytes)) {
    (void)bytes;
    ENTER_CONTEXT();
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuParamSetv, (CUfunction function, int offset, void *data, unsigned bytes)) {
    (void)offset, (void)bytes;
    ENTER_CONTEXT();
    if (!function || function->magic != FUNCTION_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    return data ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuParamSeti, (CUfunction function, int offset, unsigned value)) {
    (void)offset, (void)value;
    ENTER_CONTEXT();
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuLaunch, (CUfunction function)) {
    ENTER_CONTEXT();
    return launch(function, 1, 1, 1, NULL);
}

CUAPI(cuLaunchGrid, (CUfunction function, int width, int height)) {
    ENTER_CONTEXT();
    return launch(function, (unsigned)width, (unsigned)height, 1, NULL);
}

CUAPI(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream)) {
    ENTER_CONTEXT();
    return launch(function, (unsigned)width, (unsigned)height, 1, stream);
}
