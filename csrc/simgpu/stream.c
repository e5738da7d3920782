/* Streams and events. Work has no effect of its own here but time: a stream is done when its launches are over. */
#include "stream.h"

#include <stdlib.h>
#include <time.h>

#include "memory.h"

#define STREAM_MAGIC 0x5374726du
#define EVENT_MAGIC  0x45766e74u

static CUstream streams;
static CUevent events;

static CUresult create(CUstream *result, unsigned flags, int priority, CUcontext context) {
    if (!result || flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->magic = STREAM_MAGIC;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    stream->id = next_id();
    driver_lock();
    CUresult status = room_for_stream_locked(context);
    if (status == CUDA_SUCCESS) {
        stream->next = streams;
        streams = stream;
        *result = stream;
    }
    driver_unlock();
    if (status != CUDA_SUCCESS) free(stream);
    return status;
}

CUAPI(cuStreamCreate, (CUstream * stream, unsigned flags)) {
    ENTER_CONTEXT();
    return create(stream, flags, 0, current_context);
}

CUAPI(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority)) {
    ENTER_CONTEXT();
    return create(stream, flags, priority, current_context);
}

CUresult stream_check(CUstream stream) {
    if (LIKELY(stream_special(stream))) return CUDA_SUCCESS;
    if (UNLIKELY(stream->magic != STREAM_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    return context_check(stream->context);
}

CUcontext stream_context(CUstream stream) {
    return stream_special(stream) ? current_context : stream->context;
}

/* Freed records keep no magic, so that a stale handle is told instead of believed. */
static void unlink_stream_locked(CUstream stream) {
    CUstream *link = &streams;
    while (*link && *link != stream)
        link = &(*link)->next;
    if (!*link) return;
    *link = stream->next;
    stream->context->streams--;
    if (stream->capture) capture_forget(stream);
    stream->magic = 0;
    free(stream);
}

static CUresult destroy(CUstream stream) {
    if (stream_special(stream) || stream->magic != STREAM_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    unlink_stream_locked(stream);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuStreamDestroy_v2, (CUstream stream)) {
    ENTER();
    return destroy(stream);
}

CUAPI(cuStreamDestroy, (CUstream stream)) {
    ENTER();
    return destroy(stream);
}

static void unlink_event_locked(CUevent event) {
    CUevent *link = &events;
    while (*link && *link != event)
        link = &(*link)->next;
    if (!*link) return;
    *link = event->next;
    event->magic = 0;
    free(event);
}

void stream_release_context_locked(CUcontext context) {
    for (CUstream stream = streams, next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context) unlink_stream_locked(stream);
    }
    for (CUevent event = events, next; event; event = next) {
        next = event->next;
        if (event->context == context) unlink_event_locked(event);
    }
}

void streams_leave_capture_locked(struct capture *capture) {
    for (CUstream stream = streams; stream; stream = stream->next)
        if (stream->capture == capture) __atomic_store_n(&stream->capture, NULL, __ATOMIC_RELEASE);
    for (CUevent event = events; event; event = event->next)
        if (event->capture == capture) event->capture = NULL;
}

void stream_work(CUstream stream, uint64_t ns) {
    CUcontext context = stream_context(stream);
    uint64_t done = sim_busy_add(&driver.view, driver.device[context->device].card, ns);
    if (!stream_special(stream)) stream->done_ns = done;
    context->done_ns = done;
}

static void wait_until(uint64_t ns) {
    if (ns == 0) return;
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
}

static uint64_t done_at(CUstream stream) {
    return stream_special(stream) ? current_context->done_ns : stream->done_ns;
}

CUAPI(cuStreamSynchronize, (CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (stream_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    wait_until(done_at(stream));
    pools_synchronized(stream_context(stream)->device);
    return CUDA_SUCCESS;
}

CUAPI(cuStreamQuery, (CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (stream_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    uint64_t done = done_at(stream);
    return done && done > sim_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext context) {
    TRY(context_check(context));
    wait_until(context->done_ns);
    pools_synchronized(context->device);
    return CUDA_SUCCESS;
}

CUAPI(cuCtxSynchronize, (void)) {
    ENTER_CONTEXT();
    return synchronize(current_context);
}

CUAPI(cuCtxSynchronize_v2, (CUcontext context)) {
    ENTER();
    return synchronize(context ? context : current_context);
}

CUAPI(cuStreamGetPriority, (CUstream stream, int *priority)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream_special(stream) ? 0 : stream->priority;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetFlags, (CUstream stream, unsigned *flags)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream_special(stream) ? 0 : stream->flags;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetId, (CUstream stream, unsigned long long *id)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream_special(stream) ? (uintptr_t)stream : stream->id;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetCtx, (CUstream stream, CUcontext *context)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = stream_context(stream);
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, CUgreenCtx *green)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!context || !green) return CUDA_ERROR_INVALID_VALUE;
    *context = stream_context(stream);
    *green = stream_special(stream) ? NULL : stream->green;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetDevice, (CUstream stream, CUdevice *device)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = stream_context(stream)->device;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamAddCallback,
      (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *user_data, unsigned flags)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    callback(stream, CUDA_SUCCESS, user_data);
    return CUDA_SUCCESS;
}

CUAPI(cuStreamCopyAttributes, (CUstream target, CUstream source)) {
    ENTER_CONTEXT();
    TRY(stream_check(target));
    return stream_check(source);
}

CUAPI(cuStreamSetAttribute, (CUstream stream, int attribute, const void *value)) {
    (void)attribute;
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- events ---- */

CUAPI(cuEventCreate, (CUevent * result, unsigned flags)) {
    ENTER_CONTEXT();
    if (!result || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    CUevent event = calloc(1, sizeof *event);
    if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    event->context = current_context;
    event->flags = flags;
    driver_lock();
    event->next = events;
    events = event;
    driver_unlock();
    *result = event;
    return CUDA_SUCCESS;
}

static CUresult event_check(CUevent event) {
    return event && event->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult event_destroy(CUevent event) {
    TRY(event_check(event));
    driver_lock();
    unlink_event_locked(event);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuEventDestroy_v2, (CUevent event)) {
    ENTER();
    return event_destroy(event);
}

CUAPI(cuEventDestroy, (CUevent event)) {
    ENTER();
    return event_destroy(event);
}

static CUresult record(CUevent event, CUstream stream) {
    TRY(event_check(event));
    TRY(stream_check(stream));
    struct capture *capture = stream_capture(stream);
    if (capture) TRY(capture_check(capture));
    event->capture = capture;
    if (capture) return CUDA_SUCCESS;
    uint64_t now = sim_now_ns(), done = done_at(stream);
    event->at_ns = done > now ? done : now;
    event->recorded = true;
    return CUDA_SUCCESS;
}

CUAPI(cuEventRecord, (CUevent event, CUstream stream)) {
    ENTER_CONTEXT();
    return record(event, stream);
}

CUAPI(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags)) {
    ENTER_CONTEXT();
    if (flags & ~CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    return record(event, stream);
}

CUAPI(cuEventQuery, (CUevent event)) {
    ENTER();
    TRY(event_check(event));
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return event->recorded && event->at_ns > sim_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUAPI(cuEventSynchronize, (CUevent event)) {
    ENTER();
    TRY(event_check(event));
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (event->recorded) wait_until(event->at_ns);
    pools_synchronized(event->context->device);
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    TRY(event_check(start));
    TRY(event_check(end));
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (end->at_ns > sim_now_ns()) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)end->at_ns - (int64_t)start->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUAPI(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end)) {
    ENTER();
    return elapsed(milliseconds, start, end);
}

CUAPI(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end)) {
    ENTER();
    return elapsed(milliseconds, start, end);
}

CUAPI(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) {
    ENTER_CONTEXT();
    if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    TRY(stream_check(stream));
    TRY(event_check(event));
    struct capture *capture = stream_capture(stream);
    if (capture) TRY(capture_check(capture));
    /* A stream that waits for a captured event joins that capture. */
    if (event->capture && !stream_special(stream) && !capture) return capture_join(stream, event->capture);
    if (!stream_special(stream) && stream->done_ns < event->at_ns) stream->done_ns = event->at_ns;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxRecordEvent, (CUcontext context, CUevent event)) {
    ENTER();
    TRY(context_check(context));
    TRY(event_check(event));
    uint64_t now = sim_now_ns();
    event->at_ns = context->done_ns > now ? context->done_ns : now;
    event->recorded = true;
    return CUDA_SUCCESS;
}

CUAPI(cuCtxWaitEvent, (CUcontext context, CUevent event)) {
    ENTER();
    TRY(context_check(context));
    return event_check(event);
}
