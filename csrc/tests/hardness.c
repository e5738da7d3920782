/* Programs that do odd but allowed things around a call of the driver. One case a run, named by the first argument;
 * exit status 0 if the program got through. */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define MIB      ((size_t)1 << 20)
#define TOO_MUCH ((size_t)1 << 40)

static void *driver;
static CUcontext context;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "%s is missing\n", name);
        exit(9);
    }
    return found;
}

static CUresult call_alloc(CUdeviceptr *pointer, size_t bytes) {
    return ((CUresult (*)(CUdeviceptr *, size_t))function("cuMemAlloc_v2"))(pointer, bytes);
}

static CUresult call_alloc_async(CUdeviceptr *pointer, size_t bytes) {
    return ((CUresult (*)(CUdeviceptr *, size_t, CUstream))function("cuMemAllocAsync"))(pointer, bytes, NULL);
}

static CUresult call_free_async(CUdeviceptr pointer) {
    return ((CUresult (*)(CUdeviceptr, CUstream))function("cuMemFreeAsync"))(pointer, NULL);
}

static CUresult make_current(void) {
    return ((CUresult (*)(CUcontext))function("cuCtxSetCurrent"))(context);
}

static CUresult start(void) {
    CUresult result = ((CUresult (*)(unsigned int))function("cuInit"))(0);
    if (result == CUDA_SUCCESS)
        result = ((CUresult (*)(CUcontext *, CUdevice))function("cuDevicePrimaryCtxRetain"))(&context, 0);
    return result == CUDA_SUCCESS ? make_current() : result;
}

/* A request that is refused, which writes a line to stderr. */
static int is_refused(void) {
    CUdeviceptr pointer = 0;
    alarm(5);
    return call_alloc(&pointer, TOO_MUCH) == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1;
}

/* The reader of stderr is gone: writing would be SIGPIPE. */
static int broken_stderr(void) {
    int ends[2];
    if (start() != CUDA_SUCCESS || pipe(ends) != 0) return 2;
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    return is_refused();
}

/* Nobody reads stderr, and it is full: writing would wait. */
static int full_stderr(void) {
    int ends[2];
    char page[4096] = {0};
    if (start() != CUDA_SUCCESS || pipe(ends) != 0) return 2;
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], page, sizeof page) > 0)
        continue;
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    return is_refused();
}

/* Making the region would be SIGXFSZ; the process counts for itself instead. */
static int no_long_files(void) {
    struct rlimit none = {0, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none);
    int out[2];
    if (pipe(out) != 0) return 2;
    dup2(out[1], STDERR_FILENO); /* stderr may be a file, to which nothing may be written now */
    return start() == CUDA_SUCCESS ? is_refused() : 1;
}

static void on_alarm(int number) {
    (void)number;
}

static int timer(void) {
    struct sigaction action = {.sa_handler = on_alarm}; /* without SA_RESTART */
    struct itimerval often = {{0, 50}, {0, 50}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    return start() == CUDA_SUCCESS ? 0 : 1;
}

/* Cancelled by another thread while it is refused again and again (which writes) or waits for a lock. */
static void *until_cancelled(void *refused) {
    CUdeviceptr pointer = 0;
    if (make_current() != CUDA_SUCCESS) return NULL;
    for (;; pthread_testcancel()) {
        if (refused)
            call_alloc_async(&pointer, TOO_MUCH);
        else if (call_alloc_async(&pointer, 4 * MIB) == CUDA_SUCCESS)
            call_free_async(pointer);
    }
}

static int cancelled_threads(void) {
    enum { ROUNDS = 100, THREADS = 3 };
    CUdeviceptr pointer = 0;
    if (start() != CUDA_SUCCESS) return 2;
    alarm(40);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, until_cancelled, i ? &pointer : NULL) != 0) return 2;
        poll(NULL, 0, 2);
        for (int i = 0; i < THREADS; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        if (call_alloc_async(&pointer, 4 * MIB) != CUDA_SUCCESS || call_free_async(pointer) != CUDA_SUCCESS) return 1;
    }
    return 0;
}

/* Arrays of a format that the library doesn't know, which it measures, made by several threads. */
static void *make_arrays(void *unused) {
    CUresult (*create)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *) =
        (CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))function("cuArray3DCreate_v2");
    const CUDA_ARRAY3D_DESCRIPTOR strange = {
        .Width = 64, .Height = 64, .Format = (CUarray_format)0xb0, .NumChannels = 3};
    CUarray array;
    make_current();
    for (int i = 0; i < 100; i++)
        create(&array, &strange);
    return unused;
}

static int strange_arrays(void) {
    pthread_t threads[4];
    if (start() != CUDA_SUCCESS) return 2;
    alarm(2);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, make_arrays, NULL) != 0) return 2;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

/* A request that stays in the driver for two seconds, beside which others go on. */
static void sleep_long(void *unused) {
    (void)unused;
    poll(NULL, 0, 2000);
}

static void *launch_slowly(void *executable) {
    make_current();
    ((CUresult (*)(CUgraphExec, CUstream))function("cuGraphLaunch"))(executable, NULL);
    return NULL;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int slow_request(void) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUarray array;
    pthread_t thread;
    const CUDA_HOST_NODE_PARAMS sleeper = {.fn = sleep_long};
    const CUDA_ARRAY3D_DESCRIPTOR small = {.Width = 64, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    const CUDA_ARRAY3D_DESCRIPTOR tiny = {.Width = 64, .Height = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUresult (*create)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *) =
        (CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))function("cuArray3DCreate_v2");
    double most_ms = 0;
    if (start() != CUDA_SUCCESS || ((CUresult (*)(CUgraph *, unsigned int))function("cuGraphCreate"))(&graph, 0) ||
        ((CUresult (*)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *))function(
            "cuGraphAddHostNode"))(&node, graph, NULL, 0, &sleeper) ||
        ((CUresult (*)(CUgraphExec *, CUgraph, unsigned long long))function("cuGraphInstantiateWithFlags"))(&executable,
                                                                                                            graph, 0) ||
        pthread_create(&thread, NULL, launch_slowly, executable) != 0)
        return 2;
    poll(NULL, 0, 100);
    for (int i = 0; i < 40; i++) { /* small ones that stay, each beside a larger one that goes */
        double begin_ms = now_ms();
        create(&array, &tiny);
        create(&array, &small);
        ((CUresult (*)(CUarray))function("cuArrayDestroy"))(array);
        if (now_ms() - begin_ms > most_ms) most_ms = now_ms() - begin_ms;
    }
    pthread_join(thread, NULL);
    fprintf(stderr, "%.1f ms\n", most_ms);
    return most_ms < 300 ? 0 : 1;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"broken-stderr", broken_stderr},
                 {"full-stderr", full_stderr},
                 {"no-long-files", no_long_files},
                 {"timer", timer},
                 {"cancelled-threads", cancelled_threads},
                 {"strange-arrays", strange_arrays},
                 {"slow-request", slow_request}};
    driver = dlopen(CUDA_SONAME, RTLD_NOW);
    if (!driver || argc != 2) return 8;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) return cases[i].run();
    return 8;
}
