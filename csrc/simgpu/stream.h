/* Streams and events, as the files that work in stream order share them. */
#ifndef SIMGPU_STREAM_H
#define SIMGPU_STREAM_H

#include "driver.h"

struct CUstream_st {
    uint32_t magic;
    CUcontext context;
    CUgreenCtx green;
    unsigned flags;
    int priority;
    unsigned long long id;
    uint64_t done_ns; /* when the work launched so far is over */
    struct capture *capture;
    struct CUstream_st *next;
};

struct CUevent_st {
    uint32_t magic;
    CUcontext context;
    unsigned flags;
    bool recorded;
    uint64_t at_ns; /* when it happens, or happened */
    struct capture *capture;
    struct CUevent_st *next;
};

/* INVALID_HANDLE for what is no stream; NULL and the two special values are the current context's own. */
CUresult stream_check(CUstream stream);
/* The context of a stream that has been checked. */
CUcontext stream_context(CUstream stream);
static inline bool stream_special(CUstream stream) {
    return (uintptr_t)stream <= 2;
}
/* What the stream records into now, or NULL. Another thread may end it at any moment: look once, then use what was
 * seen, which stays valid. */
static inline struct capture *stream_capture(CUstream stream) {
    return stream_special(stream) ? NULL : __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE);
}
/* Adds work that lasts `ns` on the card. */
void stream_work(CUstream stream, uint64_t ns);

/* Work put into a stream that records a graph (capture.c). */
CUresult capture_allocation(struct capture *capture, CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool,
                            CUstream stream);
CUresult capture_free(struct capture *capture, CUdeviceptr pointer);
CUresult capture_node(struct capture *capture, CUgraphNodeType type, CUfunction function);
CUresult capture_join(CUstream stream, struct capture *capture);
void capture_forget(CUstream stream);
/* STREAM_CAPTURE_INVALIDATED for one that a forbidden call has spoilt: nothing more can be recorded into it. */
CUresult capture_check(struct capture *capture);
/* Ends a capture in all streams that take part (stream.c). */
void streams_leave_capture_locked(struct capture *capture);

#endif
