/* Takes and gives back memory at random and pauses now and then, so that a test can compare what the library charged
 * with what the card holds. Linked to the driver; whether the library is in between is up to who starts it.
 *
 *   account-churn WAY SEED ROUNDS
 *     modules  loads and unloads modules while three threads take and give back linear memory
 *     linear   requests below 1 MiB
 *     arrays   arrays below 1 MiB
 *     mixed    both
 *
 * At each pause, when nothing is in flight, it prints "held" and waits for a line; at the end, when all was given back,
 * "empty". */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
CUresult cuArrayDestroy(CUarray array);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);

#define MIB   ((size_t)1 << 20)
#define MOST  4096
#define STEPS 2000

enum thing { NOTHING, LINEAR, ARRAY };

static CUcontext context;
static uint64_t random_state;

/* xorshift */
static size_t below(uint64_t *state, size_t limit) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (size_t)(*state % limit);
}

static void need(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, (int)result);
    exit(1);
}

static void pause_here(const char *what) {
    char line[8];
    printf("%s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

/* Sizes from all scales: most requests are small, most bytes are in large ones. */
static size_t small_bytes(void) {
    return 1 + below(&random_state, ((size_t)256 << below(&random_state, 13)) - 1);
}

static CUresult take(enum thing thing, uint64_t *handle) {
    if (thing == LINEAR) return cuMemAlloc_v2((CUdeviceptr *)handle, small_bytes() % (MIB - 512) + 1);
    size_t bytes = small_bytes() % (MIB - 65536) + 1;
    CUDA_ARRAY_DESCRIPTOR array = {.Width = bytes, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    return cuArrayCreate_v2((CUarray *)handle, &array);
}

static void give(enum thing thing, uint64_t handle) {
    need(thing == LINEAR ? cuMemFree_v2(handle) : cuArrayDestroy((CUarray)(uintptr_t)handle), "free");
}

/* Grows, shrinks by freeing at random, by freeing all but every n-th, and grows again into the holes. */
static void small(bool linear, bool arrays, int rounds) {
    static struct {
        enum thing thing;
        uint64_t handle;
    } held[MOST];
    for (int round = 0; round < rounds; round++) {
        size_t kept = 1 + below(&random_state, 40), taking = 2 + below(&random_state, 3);
        for (int step = 0; step < STEPS; step++) {
            size_t i = below(&random_state, MOST);
            if (held[i].thing != NOTHING && below(&random_state, 4) >= taking) {
                give(held[i].thing, held[i].handle);
                held[i].thing = NOTHING;
            } else if (held[i].thing == NOTHING) {
                enum thing thing = !arrays || (linear && below(&random_state, 2)) ? LINEAR : ARRAY;
                if (take(thing, &held[i].handle) == CUDA_SUCCESS) held[i].thing = thing;
            }
        }
        pause_here("held");
        for (size_t i = 0; i < MOST; i++) {
            if (held[i].thing == NOTHING || i % kept == 0) continue;
            give(held[i].thing, held[i].handle);
            held[i].thing = NOTHING;
        }
        pause_here("held");
    }
    for (size_t i = 0; i < MOST; i++)
        if (held[i].thing != NOTHING) give(held[i].thing, held[i].handle);
}

static bool stop;

static void *churn(void *data) {
    uint64_t state = (uint64_t)(uintptr_t)data;
    need(cuCtxSetCurrent(context), "current");
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        CUdeviceptr pointer;
        size_t bytes = (1 + below(&state, 4)) * 100 * MIB;
        if (cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS) need(cuMemFree_v2(pointer), "free");
    }
    return NULL;
}

static void modules(int rounds) {
    static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .align 8 .b8 table[104857600];\n.visible .entry work() { ret; }\n";
    enum { MODULES = 16, LOADS = 200 };
    CUmodule held[MODULES] = {NULL};
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[3];
        __atomic_store_n(&stop, false, __ATOMIC_RELAXED);
        for (size_t i = 0; i < 3; i++)
            if (pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(random_state + i + 1)) != 0) exit(1);
        for (int load = 0; load < LOADS; load++) {
            size_t i = below(&random_state, MODULES);
            if (held[i]) {
                need(cuModuleUnload(held[i]), "unload");
                held[i] = NULL;
            } else if (cuModuleLoadData(&held[i], image) != CUDA_SUCCESS) {
                held[i] = NULL;
            }
        }
        __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
        for (size_t i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        pause_here("held");
    }
    for (size_t i = 0; i < MODULES; i++)
        if (held[i]) need(cuModuleUnload(held[i]), "unload");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    random_state = strtoull(argv[2], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    int rounds = atoi(argv[3]);
    need(cuInit(0), "cuInit");
    need(cuDevicePrimaryCtxRetain(&context, 0), "context");
    need(cuCtxSetCurrent(context), "current");
    if (strcmp(argv[1], "modules") == 0)
        modules(rounds);
    else
        small(strcmp(argv[1], "arrays") != 0, strcmp(argv[1], "linear") != 0, rounds);
    pause_here("empty");
    return 0;
}
