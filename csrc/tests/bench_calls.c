/* What a call costs. One measurement a run: `bench-calls NAME COUNT`, prints nanoseconds for one call (or pair of
 * calls). Linked to the driver; whether the library is in between is up to who starts it.
 *
 *   pair         cuMemAlloc + cuMemFree of 2 MiB        small      the same of 4 KiB
 *   lifo         cuMemFree alone, COUNT live, last first random     the same in random order
 *   refuse       cuMemAlloc of more than there is        info       cuMemGetInfo
 *   launch       cuLaunchKernel                          lookup     cuGetProcAddress_v2
 *   init         cuInit, once (exit status only)         hold       context, then waits for end of input
 *                                                        join       the same without the context */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_api.h"

#define MEASURED static __attribute__((noinline)) /* callgrind counts inside functions by their names */

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *left, size_t *total);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                        void **extra);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status);

#define REFUSED_BYTES ((size_t)1 << 44)

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void need(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, (int)result);
    exit(1);
}

static void start(void) {
    CUcontext context;
    need(cuInit(0), "cuInit");
    need(cuDevicePrimaryCtxRetain(&context, 0), "context");
    need(cuCtxSetCurrent(context), "current");
}

/* Calls are timed in batches of a few microseconds, and the median batch counts: on a busy machine a whole run is
 * interrupted again and again, most batches aren't. */
#define BATCH 64

static double *batches;
static long batch_count;

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(void) {
    qsort(batches, (size_t)batch_count, sizeof *batches, by_size);
    return batches[batch_count / 2];
}

#define TIMED(count, call)                                                                                             \
    do {                                                                                                               \
        batches = realloc(batches, (size_t)((count) / BATCH + 1) * sizeof *batches);                                   \
        batch_count = 0;                                                                                               \
        for (long done = 0; done < (count); done += BATCH) {                                                           \
            long most = (count) - done < BATCH ? (count) - done : BATCH;                                               \
            double begin = now_ns();                                                                                   \
            for (long i = done; i < done + most; i++)                                                                  \
                call;                                                                                                  \
            batches[batch_count++] = (now_ns() - begin) / (double)most;                                                \
        }                                                                                                              \
    } while (0)

static void once(size_t bytes) {
    CUdeviceptr pointer;
    need(cuMemAlloc_v2(&pointer, bytes), "alloc");
    need(cuMemFree_v2(pointer), "free");
}

MEASURED double pair(long count, size_t bytes) {
    TIMED(count, once(bytes));
    return median();
}

MEASURED double frees(long count, int shuffle) {
    CUdeviceptr *pointers = malloc((size_t)count * sizeof *pointers);
    if (!pointers) exit(1);
    for (long i = count - 1; i >= 0; i--)
        need(cuMemAlloc_v2(&pointers[i], 2 << 20), "alloc");
    srand(1);
    for (long i = count - 1; shuffle && i > 0; i--) {
        long other = rand() % (i + 1);
        CUdeviceptr kept = pointers[i];
        pointers[i] = pointers[other];
        pointers[other] = kept;
    }
    TIMED(count, need(cuMemFree_v2(pointers[i]), "free"));
    free(pointers);
    return median();
}

static void refused(void) {
    CUdeviceptr pointer;
    if (cuMemAlloc_v2(&pointer, REFUSED_BYTES) != CUDA_ERROR_OUT_OF_MEMORY) exit(1);
}

MEASURED double refuse(long count) {
    TIMED(count, refused());
    return median();
}

MEASURED double info(long count) {
    size_t left, total;
    TIMED(count, need(cuMemGetInfo_v2(&left, &total), "info"));
    return median();
}

MEASURED double launch(long count) {
    static CUmodule module;
    static CUfunction function;
    if (!module) {
        const char *image = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry work() { ret; }\n";
        need(cuModuleLoadData(&module, image), "module");
        need(cuModuleGetFunction(&function, module, "work"), "function");
    }
    TIMED(count, need(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch"));
    return median();
}

MEASURED double lookup(long count) {
    static const char *const names[] = {"cuMemAlloc", "cuLaunchKernel", "cuStreamCreate", "cuMemcpyHtoD"};
    void *function;
    TIMED(count, need(cuGetProcAddress_v2(names[i % 4], &function, 12000, 0, NULL), "lookup"));
    return median();
}

static int wait_for_end(const char *said) {
    char byte;
    printf("%s\n", said);
    fflush(stdout);
    return read(0, &byte, 1) < 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (strcmp(name, "init") == 0) return cuInit(0) != CUDA_SUCCESS;
    if (strcmp(name, "join") == 0) return cuInit(0) != CUDA_SUCCESS || wait_for_end("joined");
    start();
    if (strcmp(name, "hold") == 0) return wait_for_end("held");
    double (*measure)(long) = strcmp(name, "refuse") == 0   ? refuse
                              : strcmp(name, "info") == 0   ? info
                              : strcmp(name, "launch") == 0 ? launch
                              : strcmp(name, "lookup") == 0 ? lookup
                                                            : NULL;
    if (measure) {
        measure(count / 10 + 1); /* warm */
        printf("%.2f\n", measure(count));
    } else if (strcmp(name, "lifo") == 0 || strcmp(name, "random") == 0) {
        frees(count, name[0] == 'r');
        printf("%.2f\n", frees(count, name[0] == 'r'));
    } else if (strcmp(name, "pair") == 0 || strcmp(name, "small") == 0) {
        size_t bytes = name[0] == 'p' ? 2 << 20 : 4096;
        pair(count / 10 + 1, bytes);
        printf("%.2f\n", pair(count, bytes));
    } else {
        return 2;
    }
    return 0;
}
