/* What the files of the simulated driver (libcuda.so.1) share.
 *
 * Owns: the process-wide driver, devices as the process sees them, contexts, and the way into every exported function.
 * Everything behind ENTER() may trust that cuInit has been called in this very process (not in a parent of a fork) and
 * that the shared state is mapped.
 *
 * One mutex (driver.lock) guards all process-private bookkeeping; the shared state has its own lock. Files call each
 * other's functions named *_locked with the mutex held. */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_api.h"
#include "state.h"

#define API         __attribute__((visibility("default")))
#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Declares and begins one exported function. */
#define CUAPI(name, parameters)                                                                                        \
    API CUresult name parameters;                                                                                      \
    API CUresult name parameters

struct device {
    unsigned card; /* index in the shared state */
    struct CUctx_st *primary;
    CUmemoryPool default_pool;
    CUmemoryPool current_pool;
    CUmemoryPool managed_default_pool; /* NULL until asked for */
    CUmemoryPool managed_pool;
    CUmemoryPool graph_pool;
    struct small_heap *heap;     /* of requests below 2 MiB */
    struct small_heap *low_heap; /* the same at addresses below 4 GiB */
    struct small_heap *module_heap;
    struct small_heap *array_heap; /* of arrays, ARRAY_HEAPS: one for each number of bytes of a texel */
};

extern struct driver {
    struct sim_view view;
    uint8_t *alive; /* view.alive: first in line on every call */
    bool initialized;
    int devices;
    struct device device[SIM_MAX_CARDS];
    pthread_mutex_t lock;
} driver;

static inline bool driver_alive(void) {
    return LIKELY(driver.alive && *driver.alive);
}

CUresult driver_fault(const char *function);

/* NOT_INITIALIZED before cuInit and in a forked child; the code of a fault that is asked for. */
static inline CUresult driver_enter(const char *function) {
    if (UNLIKELY(!driver_alive())) return CUDA_ERROR_NOT_INITIALIZED;
    if (UNLIKELY(sim_faults(&driver.view))) return driver_fault(function);
    return CUDA_SUCCESS;
}

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        CUresult failed = (expression);                                                                                \
        if (UNLIKELY(failed != CUDA_SUCCESS)) return failed;                                                           \
    } while (0)

#define ENTER() TRY(driver_enter(__func__))

static inline void driver_lock(void) {
    pthread_mutex_lock(&driver.lock);
}

static inline void driver_unlock(void) {
    pthread_mutex_unlock(&driver.lock);
}

static inline const struct sim_card_config *card_config(int device) {
    return &driver.view.state->card[driver.device[device].card].config;
}

static inline bool device_valid(CUdevice device) {
    return device >= 0 && device < driver.devices;
}

/* Threads that one multiprocessor can run at once (attribute.c). */
unsigned multiprocessor_threads(int device);

/* ---- contexts (context.c) ---- */

enum { LIMITS = 10 };
#define LOCAL_BYTES 1024u /* of local memory for each thread, in a new context */

struct CUctx_st {
    int device;
    bool primary;
    bool destroyed;   /* or, for a primary one: not active */
    unsigned retains; /* of a primary context */
    unsigned flags;
    unsigned api_version;
    unsigned long long id;
    size_t limit[LIMITS];
    uint32_t local_bytes;           /* of local memory that each thread has room for */
    uint64_t room_bytes;            /* what it takes of the card beyond its own size */
    unsigned streams, streams_room; /* that live, and that there is room for: a destroyed one's stays for the next */
    uint32_t peers;                 /* bit per device with access enabled */
    uint64_t done_ns;               /* when all launched work will be over */
    struct CUctx_st *next;
};

extern __thread CUcontext current_context __attribute__((tls_model("initial-exec")));

static inline CUresult context_check(CUcontext context) {
    if (UNLIKELY(!context)) return CUDA_ERROR_INVALID_CONTEXT;
    return UNLIKELY(context->destroyed) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

#define ENTER_CONTEXT()                                                                                                \
    ENTER();                                                                                                           \
    TRY(context_check(current_context))

bool context_valid(CUcontext context);
unsigned long long next_id(void); /* of contexts, streams, buffers: never repeats in a process */

/* Captures that forbid calls which may synchronise, such as cuMemAlloc: how many there are, and whether one of them
 * means this thread. Such a call ends in an error, and so will the capture (capture.c). */
extern unsigned captures_strict;
CUresult capture_refusal(void);
#define FORBIDDEN_IN_CAPTURE()                                                                                         \
    do {                                                                                                               \
        if (UNLIKELY(__atomic_load_n(&captures_strict, __ATOMIC_RELAXED))) TRY(capture_refusal());                     \
    } while (0)
#define ENTER_UNSAFE()                                                                                                 \
    ENTER_CONTEXT();                                                                                                   \
    FORBIDDEN_IN_CAPTURE()

/* Frees everything that belongs to a dying context; each file owns its part. */
void memory_release_context_locked(CUcontext context);
void array_release_context_locked(CUcontext context);
void module_release_context_locked(CUcontext context);
void stream_release_context_locked(CUcontext context);
/* The device has no context left: pools give back all that nobody uses. */
void pools_abandoned_locked(int device);

/* Takes more of the card where a context needs it (context_room.c). OUT_OF_MEMORY changes nothing. */
CUresult room_for_limit_locked(CUcontext context, CUlimit limit, size_t value);
CUresult room_for_stream_locked(CUcontext context);
CUresult room_for_local_locked(CUcontext context, uint32_t bytes);
CUresult room_for_local(CUcontext context, uint32_t bytes);

CUresult primary_retain_locked(CUcontext *context, int device);
CUresult primary_release_locked(int device);

#endif
