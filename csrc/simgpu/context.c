/* Contexts: the primary one of a device, others, green ones, the stack of the calling thread.
 *
 * A context's record is never freed, so that a handle which another thread still has current says "destroyed". Each
 * live context takes the card's context size; what was allocated in it dies with it. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define DEPTH 64

__thread CUcontext current_context __attribute__((tls_model("initial-exec")));
static __thread struct stack {
    unsigned depth;
    CUcontext below[DEPTH]; /* current_context is on top of these */
} *stack;

static CUcontext contexts;
static unsigned long long ids;

unsigned long long next_id(void) {
    return __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
}

bool context_valid(CUcontext context) {
    for (CUcontext c = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE); c; c = c->next)
        if (c == context) return true;
    return false;
}

static void set_defaults(CUcontext context) {
    static const size_t defaults[LIMITS] = {[CU_LIMIT_STACK_SIZE] = LOCAL_BYTES,
                                            [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
                                            [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
                                            [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
                                            [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
                                            [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64};
    memcpy(context->limit, defaults, sizeof defaults);
    context->local_bytes = LOCAL_BYTES;
    context->room_bytes = 0;
    context->streams = context->streams_room = 0;
    context->peers = 0;
    context->done_ns = 0;
}

/* Takes the card's context size and makes the record usable. */
static CUresult activate_locked(CUcontext context, unsigned flags) {
    unsigned card = driver.device[context->device].card;
    if (sim_charge(&driver.view, card, SIM_CONTEXT, driver.view.state->card[card].config.context_bytes, 0) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_count_context(&driver.view, card, 1);
    set_defaults(context);
    context->flags = flags;
    context->id = next_id();
    context->destroyed = false;
    return CUDA_SUCCESS;
}

static bool device_has_context(int device) {
    for (CUcontext c = contexts; c; c = c->next)
        if (c->device == device && !c->destroyed) return true;
    return false;
}

static void deactivate_locked(CUcontext context) {
    unsigned card = driver.device[context->device].card;
    module_release_context_locked(context);
    array_release_context_locked(context);
    stream_release_context_locked(context);
    memory_release_context_locked(context);
    context->destroyed = true;
    if (!device_has_context(context->device)) pools_abandoned_locked(context->device);
    sim_uncharge(&driver.view, card, SIM_CONTEXT,
                 driver.view.state->card[card].config.context_bytes + context->room_bytes, 0);
    context->room_bytes = 0;
    sim_count_context(&driver.view, card, -1);
}

static CUcontext new_record(int device) {
    CUcontext context = calloc(1, sizeof *context);
    if (!context) return NULL;
    context->device = device;
    context->destroyed = true;
    context->api_version = SIM_CUDA_VERSION;
    context->next = contexts;
    __atomic_store_n(&contexts, context, __ATOMIC_RELEASE);
    return context;
}

/* ---- the primary context ---- */

CUresult primary_retain_locked(CUcontext *context, int device) {
    struct device *owner = &driver.device[device];
    if (!owner->primary) {
        owner->primary = new_record(device);
        if (!owner->primary) return CUDA_ERROR_OUT_OF_MEMORY;
        owner->primary->primary = true;
    }
    if (owner->primary->destroyed) TRY(activate_locked(owner->primary, owner->primary->flags));
    owner->primary->retains++;
    *context = owner->primary;
    return CUDA_SUCCESS;
}

CUresult primary_release_locked(int device) {
    CUcontext primary = driver.device[device].primary;
    if (!primary || primary->retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->retains == 0 && !primary->destroyed) deactivate_locked(primary);
    return CUDA_SUCCESS;
}

CUAPI(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) {
    ENTER();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUresult result = primary_retain_locked(context, device);
    driver_unlock();
    return result;
}

static CUresult primary_release(CUdevice device) {
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUresult result = primary_release_locked(device);
    driver_unlock();
    return result;
}

static CUresult primary_reset(CUdevice device) {
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUcontext primary = driver.device[device].primary;
    if (primary && !primary->destroyed) {
        /* All goes, but those who retained it still hold it: it stays usable, fresh. */
        unsigned flags = primary->flags;
        deactivate_locked(primary);
        if (primary->retains) activate_locked(primary, flags);
    }
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult primary_set_flags(CUdevice device, unsigned flags) {
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct device *owner = &driver.device[device];
    if (!owner->primary && (owner->primary = new_record(device))) owner->primary->primary = true;
    if (owner->primary) owner->primary->flags = flags;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) {
    ENTER();
    return primary_release(device);
}

CUAPI(cuDevicePrimaryCtxRelease, (CUdevice device)) {
    ENTER();
    return primary_release(device);
}

CUAPI(cuDevicePrimaryCtxReset_v2, (CUdevice device)) {
    ENTER();
    return primary_reset(device);
}

CUAPI(cuDevicePrimaryCtxReset, (CUdevice device)) {
    ENTER();
    return primary_reset(device);
}

CUAPI(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags)) {
    ENTER();
    return primary_set_flags(device, flags);
}

CUAPI(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags)) {
    ENTER();
    return primary_set_flags(device, flags);
}

CUAPI(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext primary = driver.device[device].primary;
    if (flags) *flags = primary ? primary->flags : 0;
    if (active) *active = primary && !primary->destroyed;
    return CUDA_SUCCESS;
}

/* ---- the thread's stack ---- */

static CUresult push(CUcontext context) {
    if (!stack && !(stack = calloc(1, sizeof *stack))) return CUDA_ERROR_OUT_OF_MEMORY;
    if (stack->depth == DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
    stack->below[stack->depth++] = current_context;
    current_context = context;
    return CUDA_SUCCESS;
}

static void pop(void) {
    current_context = stack && stack->depth ? stack->below[--stack->depth] : NULL;
}

static CUresult push_current(CUcontext context) {
    if (!context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    TRY(context_check(context));
    return push(context);
}

static CUresult pop_current(CUcontext *context) {
    if (!current_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = current_context;
    pop();
    return CUDA_SUCCESS;
}

CUAPI(cuCtxPushCurrent_v2, (CUcontext context)) {
    ENTER();
    return push_current(context);
}

CUAPI(cuCtxPushCurrent, (CUcontext context)) {
    ENTER();
    return push_current(context);
}

CUAPI(cuCtxPopCurrent_v2, (CUcontext * context)) {
    ENTER();
    return pop_current(context);
}

CUAPI(cuCtxPopCurrent, (CUcontext * context)) {
    ENTER();
    return pop_current(context);
}

CUAPI(cuCtxSetCurrent, (CUcontext context)) {
    ENTER();
    if (context && !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (context && context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!context) /* takes the top away; what lies below becomes current */
        pop();
    else
        current_context = context;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxGetCurrent, (CUcontext * context)) {
    ENTER();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = current_context;
    return CUDA_SUCCESS;
}

/* ---- further contexts ---- */

static CUresult create(CUcontext *result, unsigned flags, CUdevice device) {
    if (!result || flags & ~CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUcontext context = new_record(device);
    CUresult status = context ? activate_locked(context, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status == CUDA_SUCCESS) {
        context->retains = 1;
        status = push(context);
        if (status == CUDA_SUCCESS)
            *result = context;
        else /* the thread's stack is full: what the context took goes back */
            deactivate_locked(context);
    }
    driver_unlock();
    return status;
}

CUAPI(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device)) {
    ENTER();
    return create(context, flags, device);
}

CUAPI(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device)) {
    ENTER();
    return create(context, flags, device);
}

CUAPI(cuCtxCreate_v3,
      (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device)) {
    ENTER();
    /* Needs MPS, as on a real card without it. */
    if (count > 0) return affinity ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : CUDA_ERROR_INVALID_VALUE;
    return create(context, flags, device);
}

CUAPI(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)) {
    ENTER();
    if (parameters && parameters->numExecAffinityParams > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters && parameters->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

static CUresult destroy(CUcontext context) {
    if (!context || !context_valid(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    CUresult result = context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) deactivate_locked(context);
    driver_unlock();
    if (current_context == context) pop();
    return result;
}

CUAPI(cuCtxDestroy_v2, (CUcontext context)) {
    ENTER();
    return destroy(context);
}

CUAPI(cuCtxDestroy, (CUcontext context)) {
    ENTER();
    return destroy(context);
}

/* The usage count of CUDA 2: attach raises it, detach and the last one destroys. */
CUAPI(cuCtxAttach, (CUcontext * context, unsigned flags)) {
    ENTER_CONTEXT();
    if (!context || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!current_context->primary) current_context->retains++;
    *context = current_context;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxDetach, (CUcontext context)) {
    ENTER();
    if (!context || context != current_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->primary || --context->retains > 0) return CUDA_SUCCESS;
    return destroy(context);
}
