/* What a context takes of its card beyond its own size: raised limits and streams. Most of it only grows; the
 * context's end gives it back. */
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

/* ---- limits ---- */

/* What a limit above its default takes of the card: the device heap and the printf buffer as they are, the stack for
 * each thread that a multiprocessor can hold. */
static uint64_t limit_cost(int device, CUlimit limit, size_t value) {
    static const size_t free_of_charge[] = {1024, 1 << 20, 8 << 20}; /* part of the context's own size */
    if (limit > CU_LIMIT_MALLOC_HEAP_SIZE || value <= free_of_charge[limit]) return 0;
    uint64_t bytes = value - free_of_charge[limit];
    if (limit == CU_LIMIT_STACK_SIZE) bytes *= card_config(device)->multiprocessors * UINT64_C(1024);
    return whole_blocks(bytes);
}

CUresult room_for_limit_locked(CUcontext context, CUlimit limit, size_t value) {
    return resize_locked(context, limit_cost(context->device, limit, context->limit[limit]),
                         limit_cost(context->device, limit, value));
}

/* ---- streams ---- */

/* Fitted to what an H200 lacked with 1 to 128 streams: so much each, beyond what its context has room for. */
#define STREAM_BYTES  (UINT64_C(1120) << 10)
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
