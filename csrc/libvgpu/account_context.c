/* Contexts: what the driver takes for each, and what goes when one dies.
 *
 * Nobody says in advance how much a context takes. An estimate is reserved (what the last one took), the context is
 * made, what it really took is measured (measure.h), and the reservation turned into that. Where even that is too much,
 * the context is taken down again. */
#include "body.h"
#include "launch.h"
#include "measure.h"

#define FIRST_ESTIMATE_BYTES (128 * VGPU_MIB)
#define LEAST_BYTES          (2 * VGPU_MIB)
#define MOST_BYTES           (4096 * VGPU_MIB)

struct birth {
    int device;
    uint64_t reserved_bytes;
    struct vgpu_measure before;
};

/* With less than the estimate left, the rest is reserved: what the context needs is known only afterwards. */
static CUresult expect(struct vgpu_process *process, CUdevice ordinal, struct birth *birth) {
    if (ordinal < 0 || ordinal >= process->cuda_devices) return CUDA_ERROR_INVALID_DEVICE;
    birth->device = process->index_of[ordinal];
    uint64_t estimate = process->context_estimate_bytes[birth->device];
    birth->reserved_bytes = estimate ? estimate : FIRST_ESTIMATE_BYTES;
    CUresult result = vgpu_charge_quietly(process, birth->device, VGPU_KIND_CONTEXT, birth->reserved_bytes);
    if (result != CUDA_SUCCESS && !estimate) {
        uint64_t used = vgpu_used(process, birth->device), limit = process->limit_bytes[birth->device];
        uint64_t left = limit > used ? limit - used : 0;
        if (left >= LEAST_BYTES && left < birth->reserved_bytes) {
            birth->reserved_bytes = left;
            result = vgpu_charge_quietly(process, birth->device, VGPU_KIND_CONTEXT, left);
        }
    }
    if (result != CUDA_SUCCESS) return vgpu_refuse(process, birth->device, birth->reserved_bytes);
    vgpu_measure_start(process, birth->device, &birth->before);
    return CUDA_SUCCESS;
}

/* Settles the charge; on failure the caller takes the context down. A handle that is known already (a green context may
 * be the primary one under another name) stays what it is. */
static CUresult born(struct vgpu_process *process, const struct birth *birth, struct vgpu_context *context,
                     uint64_t least_bytes) {
    uint64_t estimate = process->context_estimate_bytes[birth->device];
    uint64_t otherwise = least_bytes == 0 ? 0 : estimate ? estimate : FIRST_ESTIMATE_BYTES;
    context->device = (uint8_t)birth->device;
    context->bytes = vgpu_measure_context(process, &birth->before, context->handle, least_bytes, MOST_BYTES, otherwise);
    CUresult result = vgpu_settle(process, birth->device, VGPU_KIND_CONTEXT, birth->reserved_bytes, context->bytes);
    if (result != CUDA_SUCCESS) return result;
    if (least_bytes) process->context_estimate_bytes[birth->device] = context->bytes;
    uint16_t known = vgpu_context_number(process, context->handle);
    if (known)
        process->contexts[known - 1].bytes += context->bytes;
    else if (vgpu_context_enter(process, context) == 0)
        process->charged_ahead = true; /* too many to follow: it is charged until the process ends */
    return CUDA_SUCCESS;
}

static void stillborn(struct vgpu_process *process, const struct birth *birth) {
    vgpu_uncharge(process, birth->device, VGPU_KIND_CONTEXT, birth->reserved_bytes);
}

/* A body of every function that makes a context: `create(pctx, ...)` makes it. */
#define CREATE(pctx, ordinal, create, ...)                                                                             \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, create(pctx, __VA_ARGS__));                                                        \
        struct birth birth;                                                                                            \
        if (!(pctx) || (ordinal) < 0 || (ordinal) >= process->cuda_devices) return create(pctx, __VA_ARGS__);          \
        vgpu_private_lock(&process->birth_lock);                                                                       \
        CUresult result = expect(process, ordinal, &birth);                                                            \
        struct vgpu_context context = {.handle = NULL};                                                                \
        if (result == CUDA_SUCCESS) {                                                                                  \
            result = create(&context.handle, __VA_ARGS__);                                                             \
            if (result != CUDA_SUCCESS) {                                                                              \
                stillborn(process, &birth);                                                                            \
            } else {                                                                                                   \
                result = born(process, &birth, &context, LEAST_BYTES);                                                 \
                if (result != CUDA_SUCCESS) real_cuCtxDestroy_v2(context.handle);                                      \
            }                                                                                                          \
        }                                                                                                              \
        vgpu_private_unlock(&process->birth_lock);                                                                     \
        if (result == CUDA_SUCCESS) *(pctx) = context.handle;                                                          \
        return result;                                                                                                 \
    } while (0)

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(pctx, dev, real_cuCtxCreate, flags, dev);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(pctx, dev, real_cuCtxCreate_v2, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
    CREATE(pctx, dev, real_cuCtxCreate_v3, paramsArray, numParams, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
    CREATE(pctx, dev, real_cuCtxCreate_v4, ctxCreateParams, flags, dev);
}

CUresult cuGLCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(pctx, dev, real_cuGLCtxCreate, flags, dev);
}

CUresult cuGLCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(pctx, dev, real_cuGLCtxCreate_v2, flags, dev);
}

CUresult cuVDPAUCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpDevice,
                          void *vdpGetProcAddress) {
    CREATE(pctx, dev, real_cuVDPAUCtxCreate, flags, dev, vdpDevice, vdpGetProcAddress);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpDevice,
                             void *vdpGetProcAddress) {
    CREATE(pctx, dev, real_cuVDPAUCtxCreate_v2, flags, dev, vdpDevice, vdpGetProcAddress);
}

static bool primary_is_active(CUdevice ordinal) {
    unsigned int flags;
    int active = 0;
    return real_cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    VGPU_BEGIN_UNGATED(process, real_cuDevicePrimaryCtxRetain(pctx, dev));
    if (!pctx || dev < 0 || dev >= process->cuda_devices) return real_cuDevicePrimaryCtxRetain(pctx, dev);
    vgpu_private_lock(&process->birth_lock);
    CUresult result;
    struct birth birth;
    if (vgpu_context_primary(process, process->index_of[dev])) {
        result = real_cuDevicePrimaryCtxRetain(pctx, dev);
    } else if ((result = expect(process, dev, &birth)) == CUDA_SUCCESS) {
        struct vgpu_context context = {.primary = true};
        result = real_cuDevicePrimaryCtxRetain(&context.handle, dev);
        if (result != CUDA_SUCCESS) {
            stillborn(process, &birth);
        } else {
            result = born(process, &birth, &context, LEAST_BYTES);
            if (result == CUDA_SUCCESS)
                *pctx = context.handle;
            else
                real_cuDevicePrimaryCtxRelease_v2(dev);
        }
    }
    vgpu_private_unlock(&process->birth_lock);
    return result;
}

/* The bodies of what may end a context: its modules are known by what the card has after all else was given back. */
#define ENDING(process, modules)                                                                                       \
    struct vgpu_modules modules;                                                                                       \
    vgpu_private_lock(&(process)->birth_lock);                                                                         \
    vgpu_modules_watch(process, &(modules))

#define ENDED(process, modules)                                                                                        \
    vgpu_modules_settle(process, &(modules));                                                                          \
    vgpu_private_unlock(&(process)->birth_lock)

/* The last release and a reset take the context down with everything in it. The handle may be given out again. */
#define RELEASE_PRIMARY(ordinal, call)                                                                                 \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE_UNGATED(process, call);                                                                     \
        ENDING(process, modules);                                                                                      \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS && (ordinal) >= 0 && (ordinal) < process->cuda_devices &&                           \
            !primary_is_active(ordinal))                                                                               \
            vgpu_context_died(process, vgpu_context_primary(process, process->index_of[ordinal]));                     \
        ENDED(process, modules);                                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    RELEASE_PRIMARY(dev, real_cuDevicePrimaryCtxRelease(dev));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    RELEASE_PRIMARY(dev, real_cuDevicePrimaryCtxRelease_v2(dev));
}

/* Whoever retained the primary context holds it after a reset too, empty. */
#define RESET_PRIMARY(ordinal, call)                                                                                   \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE_UNGATED(process, call);                                                                     \
        ENDING(process, modules);                                                                                      \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS && (ordinal) >= 0 && (ordinal) < process->cuda_devices) {                           \
            uint16_t number = vgpu_context_primary(process, process->index_of[ordinal]);                               \
            if (primary_is_active(ordinal))                                                                            \
                vgpu_context_emptied(process, number);                                                                 \
            else                                                                                                       \
                vgpu_context_died(process, number);                                                                    \
        }                                                                                                              \
        ENDED(process, modules);                                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    RESET_PRIMARY(dev, real_cuDevicePrimaryCtxReset(dev));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    RESET_PRIMARY(dev, real_cuDevicePrimaryCtxReset_v2(dev));
}

#define DESTROY(ctx, call)                                                                                             \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE_UNGATED(process, call);                                                                     \
        ENDING(process, modules);                                                                                      \
        uint16_t number = vgpu_context_number(process, ctx);                                                           \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS) vgpu_context_died(process, number);                                                \
        ENDED(process, modules);                                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuCtxDestroy(CUcontext ctx) {
    DESTROY(ctx, real_cuCtxDestroy(ctx));
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    DESTROY(ctx, real_cuCtxDestroy_v2(ctx));
}

/* Attach and detach count uses of a context; the last detach destroys it. */
CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
    VGPU_BEGIN_UNGATED(process, real_cuCtxAttach(pctx, flags));
    CUcontext attached = NULL;
    if (!pctx) return real_cuCtxAttach(pctx, flags);
    vgpu_private_lock(&process->birth_lock);
    CUresult result = real_cuCtxAttach(&attached, flags);
    uint16_t number = result == CUDA_SUCCESS ? vgpu_context_number(process, attached) : 0;
    if (number) process->contexts[number - 1].attached++;
    vgpu_private_unlock(&process->birth_lock);
    if (result == CUDA_SUCCESS) *pctx = attached;
    return result;
}

/* After a detach. The primary context isn't counted by it. */
static bool lives_on(struct vgpu_process *process, uint16_t number) {
    struct vgpu_context *context = &process->contexts[number - 1];
    for (int ordinal = 0; context->primary && ordinal < process->cuda_devices; ordinal++)
        if (process->index_of[ordinal] == context->device) return primary_is_active(ordinal);
    return context->attached-- > 0;
}

CUresult cuCtxDetach(CUcontext ctx) {
    VGPU_BEGIN_RELEASE_UNGATED(process, real_cuCtxDetach(ctx));
    ENDING(process, modules);
    uint16_t number = vgpu_context_number(process, ctx);
    CUresult result = real_cuCtxDetach(ctx);
    if (result == CUDA_SUCCESS && number && !lives_on(process, number)) vgpu_context_died(process, number);
    ENDED(process, modules);
    return result;
}

/* A green context is a slice of the primary context, which it brings to life and keeps alive. What it takes beside that
 * goes with it. */
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
    VGPU_BEGIN_UNGATED(process, real_cuGreenCtxCreate(phCtx, desc, dev, flags));
    struct birth birth = {.reserved_bytes = 0};
    if (!phCtx || dev < 0 || dev >= process->cuda_devices) return real_cuGreenCtxCreate(phCtx, desc, dev, flags);
    vgpu_private_lock(&process->birth_lock);
    CUresult result = CUDA_SUCCESS;
    if (primary_is_active(dev)) {
        birth.device = process->index_of[dev];
        vgpu_measure_start(process, birth.device, &birth.before);
    } else {
        result = expect(process, dev, &birth);
    }
    if (result == CUDA_SUCCESS) {
        bool first = birth.reserved_bytes != 0;
        CUgreenCtx green = NULL;
        result = real_cuGreenCtxCreate(&green, desc, dev, flags);
        if (result != CUDA_SUCCESS) {
            stillborn(process, &birth);
        } else {
            struct vgpu_context context = {.green = first ? NULL : green, .primary = first};
            if (!first)
                real_cuCtxFromGreenCtx(&context.handle, green);
            else if (real_cuDevicePrimaryCtxRetain(&context.handle, dev) == CUDA_SUCCESS)
                real_cuDevicePrimaryCtxRelease_v2(dev); /* only its handle was wanted */
            result = born(process, &birth, &context, first ? LEAST_BYTES : 0);
            if (result == CUDA_SUCCESS)
                *phCtx = green;
            else
                real_cuGreenCtxDestroy(green);
        }
    }
    vgpu_private_unlock(&process->birth_lock);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
    VGPU_BEGIN_RELEASE_UNGATED(process, real_cuGreenCtxDestroy(hCtx));
    ENDING(process, modules);
    uint16_t number = 0;
    for (uint32_t i = 0; hCtx && i < process->context_count; i++)
        if (process->contexts[i].handle && process->contexts[i].green == hCtx) number = (uint16_t)(i + 1);
    CUresult result = real_cuGreenCtxDestroy(hCtx);
    if (result == CUDA_SUCCESS) {
        vgpu_context_died(process, number);
        for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
            if (!primary_is_active(ordinal))
                vgpu_context_died(process, vgpu_context_primary(process, process->index_of[ordinal]));
    }
    ENDED(process, modules);
    return result;
}

/* What goes was charged for the context, or, if it came with no call that told of it, as the driver's own doing. */
static void shrank(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes) {
    uint64_t *taken = &process->module_bytes[place->device];
    uint64_t own = vgpu_context_shrank(process, place->context, bytes), rest = bytes - own;
    if (rest > *taken) rest = *taken;
    vgpu_uncharge(process, place->device, VGPU_KIND_CONTEXT, own);
    vgpu_uncharge(process, place->device, VGPU_KIND_MODULE, rest);
    *taken -= rest;
}

/* Heap, stacks and printf buffer of a context lie on the card; how much a value takes there only the card knows. A
 * value that turns out to be too much is set back. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    VGPU_BEGIN_UNGATED(process, real_cuCtxSetLimit(limit, value));
    struct vgpu_place place;
    struct vgpu_measure before;
    size_t old = 0;
    if ((limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE && limit != CU_LIMIT_STACK_SIZE) ||
        !vgpu_place_current(process, &place) || real_cuCtxGetLimit(&old, limit) != CUDA_SUCCESS)
        return real_cuCtxSetLimit(limit, value);
    vgpu_private_lock(&process->birth_lock);
    uint64_t reserved_bytes = value > old && limit != CU_LIMIT_STACK_SIZE ? vgpu_whole_blocks(value - old) : 0;
    CUresult result = vgpu_charge(process, place.device, VGPU_KIND_CONTEXT, reserved_bytes);
    if (result == CUDA_SUCCESS) {
        vgpu_measure_start(process, place.device, &before);
        result = real_cuCtxSetLimit(limit, value);
        int64_t change = result == CUDA_SUCCESS ? vgpu_measure_change(process, &before, reserved_bytes) : 0;
        uint64_t grown = change > 0 ? (uint64_t)change : 0;
        if (vgpu_settle(process, place.device, VGPU_KIND_CONTEXT, reserved_bytes, grown) != CUDA_SUCCESS) {
            real_cuCtxSetLimit(limit, old);
            /* With that the driver may have taken back more than it has just made room for. */
            change = vgpu_measure_change(process, &before, reserved_bytes) - (int64_t)reserved_bytes;
            if (change > 0) change = 0;
            value = old;
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (change > 0)
            vgpu_context_grew(process, place.context, (uint64_t)change);
        else
            shrank(process, &place, (uint64_t)-change);
        if (limit == CU_LIMIT_STACK_SIZE && (result == CUDA_SUCCESS || change < 0))
            vgpu_launch_limit_set(process, &place, value, change < 0);
    }
    vgpu_private_unlock(&process->birth_lock);
    return result;
}
