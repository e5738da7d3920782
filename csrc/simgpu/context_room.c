/* What a context takes of its card beyond its own size: raised limits, local memory of kernels, streams. What
 * launches and streams made it grow by stays until the context's end, unless the stack limit is set again. */
#include "memory.h"

static uint64_t whole_blocks(uint64_t bytes) {
    return (bytes + BLOCK - 1) & ~(BLOCK - 1);
}

static CUresult resize_locked(CUcontext context, uint64_t before, uint64_t after) {
    unsigned card = driver.device[context->device].card;
    if (context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (after > before && sim_charge(&driver.view, card, SIM_CONTEXT, after - before, 0) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (after < before) sim_uncharge(&driver.view, card, SIM_CONTEXT, before - after, 0);
    context->room_bytes += after - before;
    return CUDA_SUCCESS;
}

/* ---- local memory ---- */

/* Each thread that the card can run at once has its own. */
static uint64_t local_cost(int device, uint32_t bytes) {
    uint64_t threads = (uint64_t)card_config(device)->multiprocessors * multiprocessor_threads(device);
    return whole_blocks((bytes - LOCAL_BYTES) * threads);
}

static CUresult resize_local_locked(CUcontext context, uint32_t bytes) {
    if (bytes < LOCAL_BYTES) bytes = LOCAL_BYTES;
    TRY(resize_locked(context, local_cost(context->device, context->local_bytes), local_cost(context->device, bytes)));
    context->local_bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult room_for_local_locked(CUcontext context, uint32_t bytes) {
    return bytes <= context->local_bytes ? CUDA_SUCCESS : resize_local_locked(context, bytes);
}

CUresult room_for_local(CUcontext context, uint32_t bytes) {
    driver_lock();
    CUresult result = room_for_local_locked(context, bytes);
    driver_unlock();
    return result;
}

/* ---- limits ---- */

/* What a context has room for from the start: that is part of its own size. */
static const size_t first_limit[] = {
    [CU_LIMIT_STACK_SIZE] = LOCAL_BYTES, [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20, [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20};

static uint64_t limit_cost(CUlimit limit, size_t value) {
    return value <= first_limit[limit] ? 0 : whole_blocks(value - first_limit[limit]);
}

CUresult room_for_limit_locked(CUcontext context, CUlimit limit, size_t value) {
    if (limit > CU_LIMIT_MALLOC_HEAP_SIZE) return CUDA_SUCCESS;
    if (limit == CU_LIMIT_STACK_SIZE) return resize_local_locked(context, (uint32_t)value);
    return resize_locked(context, limit_cost(limit, context->limit[limit]), limit_cost(limit, value));
}

/* ---- streams ---- */

/* Fitted to what an H200 lacked with 1 to 256 streams: so much each, beyond what its context has room for. */
#define STREAM_BYTES  (UINT64_C(560) << 10)
#define FIRST_STREAMS (UINT64_C(1536) << 10)

static uint64_t streams_cost(unsigned streams) {
    uint64_t bytes = streams * STREAM_BYTES;
    return bytes > FIRST_STREAMS ? whole_blocks(bytes - FIRST_STREAMS) : 0;
}

CUresult room_for_stream_locked(CUcontext context) {
    if (context->streams == context->streams_room) {
        unsigned more = context->streams_room + 1;
        TRY(resize_locked(context, streams_cost(context->streams_room), streams_cost(more)));
        context->streams_room = more;
    }
    context->streams++;
    return CUDA_SUCCESS;
}
