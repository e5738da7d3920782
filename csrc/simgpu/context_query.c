/* What a context is, its limits, its peers. */
#include "memory.h"

CUAPI(cuCtxGetDevice, (CUdevice * device)) {
    ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current_context->device;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetDevice_v2, (CUdevice * device, CUcontext context)) {
    ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!context) context = current_context;
    if (!context || !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetFlags, (unsigned *flags)) {
    ENTER_CONTEXT();
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = current_context->flags;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxSetFlags, (unsigned flags)) {
    ENTER_CONTEXT();
    if (flags & ~CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    current_context->flags = flags;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetId, (CUcontext context, unsigned long long *id)) {
    ENTER();
    if (!context) context = current_context;
    TRY(context_check(context));
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetApiVersion, (CUcontext context, unsigned *version)) {
    ENTER();
    if (!context) context = current_context;
    if (!context || !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxSetLimit, (CUlimit limit, size_t value)) {
    ENTER_CONTEXT();
    if ((unsigned)limit >= LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (limit == CU_LIMIT_STACK_SIZE && value > 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = room_for_limit_locked(current_context, limit, value);
    if (result == CUDA_SUCCESS) current_context->limit[limit] = value;
    driver_unlock();
    return result;
}

CUAPI(cuCtxGetLimit, (size_t *value, CUlimit limit)) {
    ENTER_CONTEXT();
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit >= LIMITS) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = current_context->limit[limit];
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetCacheConfig, (int *config)) {
    ENTER_CONTEXT();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxSetCacheConfig, (int config)) {
    ENTER_CONTEXT();
    return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUAPI(cuCtxGetSharedMemConfig, (int *config)) {
    ENTER_CONTEXT();
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = 1;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxSetSharedMemConfig, (int config)) {
    (void)config;
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) {
    ENTER_CONTEXT();
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxResetPersistingL2Cache, (void)) {
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetExecAffinity, (CUexecAffinityParam * parameter, CUexecAffinityType type)) {
    ENTER_CONTEXT();
    if (!parameter || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
    parameter->type = type;
    parameter->param.smCount.val = card_config(current_context->device)->multiprocessors;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags)) {
    ENTER_CONTEXT();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!context_valid(peer) || peer->destroyed || peer == current_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == current_context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = 1u << peer->device;
    if (__atomic_fetch_or(&current_context->peers, bit, __ATOMIC_RELAXED) & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxDisablePeerAccess, (CUcontext peer)) {
    ENTER_CONTEXT();
    if (!context_valid(peer)) return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t bit = 1u << peer->device;
    if (!(__atomic_fetch_and(&current_context->peers, ~bit, __ATOMIC_RELAXED) & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    return CUDA_SUCCESS;
}

CUAPI(cuFlushGPUDirectRDMAWrites, (int target, int scope)) {
    (void)target, (void)scope;
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}
