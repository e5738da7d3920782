/* Stream capture: work put into a stream becomes nodes of a graph instead, one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "pool.h"

struct capture {
    CUgraph graph;
    CUstream origin;
    CUgraphNode last;
    unsigned long long id;
    unsigned streams; /* that record into it */
    bool own;         /* the graph was made for it */
    bool invalid;     /* a call that it forbids was made: nothing will come of it */
    CUstreamCaptureMode mode;
    const void *thread;   /* that began it: where its thread_mode is */
    struct capture *next; /* strict one */
};

/* Captures in progress of which the mode isn't relaxed, under driver.lock. */
static struct capture *strict;
unsigned captures_strict;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* One thread at a time records or ends a capture: an invalid one's graph dies. Locked before driver.lock, never in it.
 */
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

/* A thread-local capture forbids only what its own thread does. A thread's own mode can free it from other threads'
 * captures (thread-local) or from all (relaxed). */
CUresult capture_refusal(void) {
    bool refused = false;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    driver_lock();
    for (struct capture *capture = strict; capture; capture = capture->next) {
        bool everywhere =
            capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!everywhere && capture->thread != &thread_mode) continue;
        __atomic_store_n(&capture->invalid, true, __ATOMIC_RELEASE);
        refused = true;
    }
    driver_unlock();
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_check(struct capture *capture) {
    bool invalid = __atomic_load_n(&capture->invalid, __ATOMIC_ACQUIRE);
    return UNLIKELY(invalid) ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static void start_locked(struct capture *capture) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    capture->next = strict;
    strict = capture;
    __atomic_fetch_add(&captures_strict, 1, __ATOMIC_RELAXED);
}

static void stop_locked(struct capture *capture) {
    struct capture **link = &strict;
    while (*link && *link != capture)
        link = &(*link)->next;
    if (!*link) return;
    *link = capture->next;
    __atomic_fetch_sub(&captures_strict, 1, __ATOMIC_RELAXED);
}

/* Begins adding a node: `recording` is held where this succeeds, until recorded(). */
static CUresult record(struct capture *capture) {
    pthread_mutex_lock(&recording);
    CUresult result = capture_check(capture);
    if (result != CUDA_SUCCESS) pthread_mutex_unlock(&recording);
    return result;
}

static CUresult recorded(struct capture *capture, CUresult result, CUgraphNode node) {
    if (result == CUDA_SUCCESS) capture->last = node;
    pthread_mutex_unlock(&recording);
    return result;
}

CUresult capture_node(struct capture *capture, CUgraphNodeType type, CUfunction function) {
    CUgraphNode node = NULL;
    TRY(record(capture));
    CUresult result = node_add(&node, capture->graph, type, &capture->last, capture->last != NULL);
    if (result == CUDA_SUCCESS) node->kernel.func = function;
    return recorded(capture, result, node);
}

CUresult capture_allocation(struct capture *capture, CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool,
                            CUstream stream) {
    int device = pool ? pool->device : stream->context->device;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = bytes};
    CUgraphNode node = NULL;
    TRY(record(capture));
    CUresult result = graph_add_allocation(&node, capture->graph, &capture->last, capture->last != NULL, &parameters);
    if (result == CUDA_SUCCESS) *pointer = parameters.dptr;
    return recorded(capture, result, node);
}

CUresult capture_free(struct capture *capture, CUdeviceptr pointer) {
    CUgraphNode node = NULL;
    TRY(record(capture));
    CUresult result = graph_add_free(&node, capture->graph, &capture->last, capture->last != NULL, pointer);
    return recorded(capture, result, node);
}

CUresult capture_join(CUstream stream, struct capture *capture) {
    TRY(capture_check(capture));
    stream->capture = capture;
    capture->streams++;
    return CUDA_SUCCESS;
}

/* A stream that records dies: what it began is lost with its last stream. Locked. */
void capture_forget(CUstream stream) {
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    if (--capture->streams > 0) return;
    stop_locked(capture);
    if (capture->own) graph_free_locked(capture->graph);
    free(capture);
}

static CUresult begin(CUstream stream, CUgraph graph, const CUgraphNode *before, size_t count,
                      CUstreamCaptureMode mode) {
    TRY(stream_check(stream));
    if (stream_special(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count && !before)) return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = calloc(1, sizeof *capture);
    CUgraph target = graph ? graph : graph_new();
    if (!capture || !target) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct capture){.graph = target,
                                .origin = stream,
                                .last = count ? before[count - 1] : NULL,
                                .id = next_id(),
                                .streams = 1,
                                .own = graph == NULL,
                                .mode = mode,
                                .thread = &thread_mode};
    driver_lock();
    __atomic_store_n(&stream->capture, capture, __ATOMIC_RELEASE);
    start_locked(capture);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode)) {
    ENTER_CONTEXT();
    return begin(stream, NULL, NULL, 0, mode);
}

CUAPI(cuStreamBeginCapture, (CUstream stream)) {
    ENTER_CONTEXT();
    return begin(stream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUAPI(cuStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const CUgraphNode *before,
                                    const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)) {
    (void)data;
    ENTER_CONTEXT();
    return graph_valid(graph) ? begin(stream, graph, before, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuStreamEndCapture, (CUstream stream, CUgraph *graph)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    struct capture *capture = stream_capture(stream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    pthread_mutex_lock(&recording);
    driver_lock();
    CUresult result = stream->capture == capture ? capture_check(capture) : CUDA_ERROR_ILLEGAL_STATE;
    if (result != CUDA_ERROR_ILLEGAL_STATE) {
        streams_leave_capture_locked(capture);
        stop_locked(capture);
    }
    if (result == CUDA_SUCCESS) *graph = capture->graph;
    if (result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && capture->own) graph_free_locked(capture->graph);
    driver_unlock();
    pthread_mutex_unlock(&recording);
    return result; /* what is left of the capture isn't freed: another thread may be recording into it still */
}

static CUstreamCaptureStatus status_of(struct capture *capture) {
    if (!capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return capture_check(capture) == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                  : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUAPI(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream_capture(stream));
    return CUDA_SUCCESS;
}

static CUresult info(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, const CUgraphEdgeData **data, size_t *count) {
    TRY(stream_check(stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = stream_capture(stream);
    *status = status_of(capture);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = capture->id;
    if (graph) *graph = capture->graph;
    if (nodes) *nodes = &capture->last;
    if (data) *data = NULL;
    if (count) *count = capture->last != NULL;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id)) {
    ENTER_CONTEXT();
    return info(stream, status, id, NULL, NULL, NULL, NULL);
}

CUAPI(cuStreamGetCaptureInfo_v2, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                  const CUgraphNode **nodes, size_t *count)) {
    ENTER_CONTEXT();
    return info(stream, status, id, graph, nodes, NULL, count);
}

CUAPI(cuStreamGetCaptureInfo_v3, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                  const CUgraphNode **nodes, const CUgraphEdgeData **data, size_t *count)) {
    ENTER_CONTEXT();
    return info(stream, status, id, graph, nodes, data, count);
}

static CUresult set_dependencies(CUstream stream, CUgraphNode *nodes, size_t count) {
    TRY(stream_check(stream));
    struct capture *capture = stream_capture(stream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    TRY(capture_check(capture));
    if (count && !nodes) return CUDA_ERROR_INVALID_VALUE;
    capture->last = count ? nodes[count - 1] : NULL;
    return CUDA_SUCCESS;
}

CUAPI(cuStreamUpdateCaptureDependencies, (CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags)) {
    (void)flags;
    ENTER_CONTEXT();
    return set_dependencies(stream, nodes, count);
}

CUAPI(cuStreamUpdateCaptureDependencies_v2,
      (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count, unsigned flags)) {
    (void)data, (void)flags;
    ENTER_CONTEXT();
    return set_dependencies(stream, nodes, count);
}

CUAPI(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode)) {
    ENTER();
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
