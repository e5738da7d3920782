/* Green contexts: a part of a device's multiprocessors. They live on the primary context's memory. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "stream.h"

#define GREEN_MAGIC 0x47726e43u
#define DESC_MAGIC  0x47726e44u

struct CUgreenCtx_st {
    uint32_t magic;
    int device;
    unsigned multiprocessors;
    unsigned long long id;
    struct CUctx_st *context; /* a view of the primary one, as a context of its own handle */
};

struct CUdevResourceDesc_st {
    uint32_t magic;
    unsigned multiprocessors;
};

static void fill(CUdevResource *resource, unsigned multiprocessors) {
    memset(resource, 0, sizeof *resource);
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = multiprocessors;
    resource->sm.minSmPartitionSize = 2;
    resource->sm.smCoscheduledAlignment = 2;
}

CUAPI(cuDeviceGetDevResource, (CUdevice device, CUdevResource *resource, CUdevResourceType type)) {
    ENTER();
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(resource, card_config(device)->multiprocessors);
    return CUDA_SUCCESS;
}

CUAPI(cuDevSmResourceSplitByCount, (CUdevResource * result, unsigned *groups, const CUdevResource *input,
                                    CUdevResource *rest, unsigned flags, unsigned least)) {
    (void)flags;
    ENTER();
    if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
    unsigned size = least < 2 ? 2 : (least + 1) & ~1u;
    unsigned possible = input->sm.smCount / size;
    if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result && *groups < possible) possible = *groups;
    for (unsigned i = 0; result && i < possible; i++)
        fill(&result[i], size);
    *groups = possible;
    if (rest) fill(rest, input->sm.smCount - possible * size);
    return CUDA_SUCCESS;
}

CUAPI(cuDevResourceGenerateDesc, (CUdevResourceDesc * description, CUdevResource *resources, unsigned count)) {
    ENTER();
    if (!description || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
    CUdevResourceDesc made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = DESC_MAGIC;
    for (unsigned i = 0; i < count; i++)
        made->multiprocessors += resources[i].sm.smCount;
    *description = made;
    return CUDA_SUCCESS;
}

CUAPI(cuGreenCtxCreate, (CUgreenCtx * result, CUdevResourceDesc description, CUdevice device, unsigned flags)) {
    ENTER();
    if (!result || !description || description->magic != DESC_MAGIC || !(flags & 1u)) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUgreenCtx green = calloc(1, sizeof *green);
    if (!green) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    CUresult status = primary_retain_locked(&green->context, device);
    driver_unlock();
    if (status != CUDA_SUCCESS) {
        free(green);
        return status;
    }
    green->magic = GREEN_MAGIC;
    green->device = device;
    green->multiprocessors = description->multiprocessors;
    green->id = next_id();
    *result = green;
    return CUDA_SUCCESS;
}

static CUresult check(CUgreenCtx green) {
    return green && green->magic == GREEN_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUAPI(cuGreenCtxDestroy, (CUgreenCtx green)) {
    ENTER();
    TRY(check(green));
    green->magic = 0;
    driver_lock();
    CUresult status = primary_release_locked(green->device);
    driver_unlock();
    free(green);
    return status;
}

CUAPI(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green)) {
    ENTER();
    TRY(check(green));
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}

CUAPI(cuGreenCtxGetId, (CUgreenCtx green, unsigned long long *id)) {
    ENTER();
    TRY(check(green));
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = green->id;
    return CUDA_SUCCESS;
}

CUAPI(cuGreenCtxGetDevResource, (CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)) {
    ENTER();
    TRY(check(green));
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(resource, green->multiprocessors);
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetDevResource, (CUcontext context, CUdevResource *resource, CUdevResourceType type)) {
    ENTER();
    TRY(context_check(context));
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(resource, card_config(context->device)->multiprocessors);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);

CUAPI(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx green, unsigned flags, int priority)) {
    ENTER();
    TRY(check(green));
    CUcontext before = current_context;
    current_context = green->context;
    CUresult status = cuStreamCreateWithPriority(stream, flags, priority);
    current_context = before;
    if (status == CUDA_SUCCESS) (*stream)->green = green;
    return status;
}

CUAPI(cuStreamGetGreenCtx, (CUstream stream, CUgreenCtx *green)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!green) return CUDA_ERROR_INVALID_VALUE;
    *green = stream_special(stream) ? NULL : stream->green;
    return CUDA_SUCCESS;
}

CUAPI(cuGreenCtxRecordEvent, (CUgreenCtx green, CUevent event)) {
    ENTER();
    TRY(check(green));
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuGreenCtxWaitEvent, (CUgreenCtx green, CUevent event)) {
    ENTER();
    TRY(check(green));
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
