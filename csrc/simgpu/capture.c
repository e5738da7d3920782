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
    CUstreamCaptureMode mode;
};

unsigned captures_global;
__thread unsigned captures_local __attribute__((tls_model("initial-exec")));
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult capture_refusal(void) {
    bool refused =
        captures_local ? thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED : thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* A capture in relaxed mode forbids nothing, one in thread-local mode only what its own thread does. */
static void forbid(CUstreamCaptureMode mode, int change) {
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) __atomic_fetch_add(&captures_global, (unsigned)change, __ATOMIC_RELAXED);
    if (mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) captures_local += (unsigned)change;
}

static CUresult append(struct capture *capture, CUgraphNode node) {
    capture->last = node;
    return CUDA_SUCCESS;
}

CUresult capture_node(struct capture *capture, CUgraphNodeType type, CUfunction function) {
    CUgraphNode node;
    TRY(node_add(&node, capture->graph, type, &capture->last, capture->last != NULL));
    node->kernel.func = function;
    return append(capture, node);
}

CUresult capture_allocation(struct capture *capture, CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool,
                            CUstream stream) {
    int device = pool ? pool->device : stream->context->device;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = bytes};
    CUgraphNode node;
    TRY(graph_add_allocation(&node, capture->graph, &capture->last, capture->last != NULL, &parameters));
    *pointer = parameters.dptr;
    return append(capture, node);
}

CUresult capture_free(struct capture *capture, CUdeviceptr pointer) {
    CUgraphNode node;
    TRY(graph_add_free(&node, capture->graph, &capture->last, capture->last != NULL, pointer));
    return append(capture, node);
}

CUresult capture_join(CUstream stream, struct capture *capture) {
    stream->capture = capture;
    capture->streams++;
    return CUDA_SUCCESS;
}

/* A stream that records dies: what it began is lost with its last stream. Locked. */
void capture_forget(CUstream stream) {
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    if (--capture->streams > 0) return;
    forbid(capture->mode, -1);
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
                                .mode = mode};
    __atomic_store_n(&stream->capture, capture, __ATOMIC_RELEASE);
    forbid(mode, 1);
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
    *graph = capture->graph;
    driver_lock();
    streams_leave_capture_locked(capture);
    driver_unlock();
    forbid(capture->mode, -1);
    return CUDA_SUCCESS; /* what is left of the capture isn't freed: another thread may be recording into it still */
}

CUAPI(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = stream_capture(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult info(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, const CUgraphEdgeData **data, size_t *count) {
    TRY(stream_check(stream));
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = stream_capture(stream);
    *status = capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (!capture) return CUDA_SUCCESS;
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
