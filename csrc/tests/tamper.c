/* A program that changes what it hands to a call while the call runs, from another thread: what the library reads
 * twice, or reads where the driver has written, is another thing the second time. One case a run, named by the first
 * argument; it takes what it can get, prints "held", and waits for the end of its input with all of that. Linked to the
 * driver; whether the library is in between is up to who starts it. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_api.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element);
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
CUresult cuArrayDestroy(CUarray array);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);

#define MIB        ((size_t)1 << 20)
#define PATIENCE_S 0.3

/* What the other thread does meanwhile, again and again. */
static void (*meddle)(void);
static bool ready, over;
static CUcontext context;

static void *meddler(void *unused) {
    (void)unused;
    cuCtxSetCurrent(context);
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED))
        meddle();
    return NULL;
}

static size_t number;
static void *handle, *stolen, *decoy;

static void *see(void **place) {
    return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

static void put(void **place, void *value) {
    __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

static void linger(void) {
    for (volatile int i = 0; i < 50; i++)
        continue;
}

static void overwrite_number(void) {
    __atomic_store_n(&number, 1, __ATOMIC_RELAXED);
}

/* Takes the handle out of the place that it was written to. */
static void steal(void) {
    void *seen = see(&handle);
    if (!seen || seen == see(&decoy)) return;
    put(&stolen, seen);
    put(&handle, see(&decoy));
}

static void flip_place(CUmemLocationType *type) {
    linger();
    __atomic_store_n((uint32_t *)type, CU_MEM_LOCATION_TYPE_HOST, __ATOMIC_RELAXED);
    linger();
    __atomic_store_n((uint32_t *)type, CU_MEM_LOCATION_TYPE_DEVICE, __ATOMIC_RELAXED);
}

/* Whether it is still worth trying: a busy machine seldom lets two threads run at once. */
static bool again(void) {
    static double until;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    if (until == 0) until = seconds + PATIENCE_S;
    return seconds < until;
}

/* ---- the cases ---- */

/* Takes until nothing is left, then the last one again and again: what was got for nothing stays. */
static void fill(CUresult (*take)(CUdeviceptr *taken), void (*give)(CUdeviceptr taken)) {
    CUdeviceptr taken[256];
    size_t count = 0;
    while (count < 256 && again()) {
        if (take(&taken[count]) == CUDA_SUCCESS)
            count++;
        else if (count > 0)
            give(taken[--count]);
    }
}

static void free_linear(CUdeviceptr pointer) {
    cuMemFree_v2(pointer);
}

static CUresult take_pitched(CUdeviceptr *pointer) {
    return cuMemAllocPitch_v2(pointer, &number, MIB, 64, 4);
}

static void pitch(void) {
    fill(take_pitched, free_linear);
}

static CUmemAllocationProp *shared_properties;

static void location(void) {
    CUmemGenericAllocationHandle memory;
    while (again())
        cuMemCreate(&memory, 64 * MIB, shared_properties, 0);
}

static void flip_location(void) {
    flip_place(&shared_properties->location.type);
}

static CUmemPoolProps *pool_properties;

static void flip_pool_location(void) {
    flip_place(&pool_properties->location.type);
}

static void pool(void) {
    CUmemoryPool made;
    CUdeviceptr pointer;
    while (again())
        if (cuMemPoolCreate(&made, pool_properties) == CUDA_SUCCESS)
            cuMemAllocFromPoolAsync(&pointer, 64 * MIB, made, NULL);
}

static CUDA_ARRAY3D_DESCRIPTOR descriptor = {
    .Width = 64, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};

static void flip_width(void) {
    linger();
    __atomic_store_n(&descriptor.Width, 64, __ATOMIC_RELAXED);
    linger();
    __atomic_store_n(&descriptor.Width, 4096, __ATOMIC_RELAXED);
}

static void destroy_array(CUdeviceptr array) {
    cuArrayDestroy((CUarray)(uintptr_t)array);
}

static CUresult take_array(CUdeviceptr *array) {
    return cuArray3DCreate_v2((CUarray *)array, &descriptor);
}

static void array(void) {
    fill(take_array, destroy_array);
}

/* An array whose handle is found under another one's. */
static void array_handle(void) {
    const CUDA_ARRAY_DESCRIPTOR large = {.Width = 2048, .Height = 2048, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    cuArrayCreate_v2((CUarray *)&decoy, &large);
    while (again()) {
        put(&handle, NULL);
        cuArrayCreate_v2((CUarray *)&handle, &large);
    }
}

/* A module that doesn't fit is unloaded again, if it is still where it was put. */
static void module(void) {
    char image[256];
    put(&decoy, (void *)1);
    snprintf(image, sizeof image,
             ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 table[%zu];\n", 400 * MIB);
    while (again()) {
        put(&handle, NULL);
        cuModuleLoadData((CUmodule *)&handle, image);
    }
}

static void graph(void) {
    while (again()) {
        CUgraph made;
        CUgraphNode node;
        CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
            .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
            .bytesize = 64 * MIB};
        put(&decoy, (void *)16);
        put(&handle, NULL);
        put(&stolen, NULL);
        cuGraphCreate(&made, 0);
        cuGraphAddMemAllocNode(&node, made, NULL, 0, &parameters);
        cuGraphInstantiateWithFlags((CUgraphExec *)&handle, made, 0);
        void *executable = see(&stolen) ? see(&stolen) : see(&handle);
        if (executable != decoy) cuGraphLaunch(executable, NULL);
    }
}

/* A context whose charge is another's, with which it goes. */
static void contexts(void) {
    while (again()) {
        CUcontext other;
        if (cuCtxCreate_v2(&other, 0, 0) != CUDA_SUCCESS) break;
        put(&decoy, other);
        put(&handle, NULL);
        cuCtxCreate_v2((CUcontext *)&handle, 0, 0);
        cuCtxDestroy_v2(other);
        cuCtxSetCurrent(context);
    }
}

/* A tile that holds other memory than its description says afterwards. */
static CUarrayMapInfo map_info;
static CUmemGenericAllocationHandle tile_memory, tile_other;

static void swap_tile(void) {
    __atomic_store_n(&map_info.memHandle.memHandle, __atomic_load_n(&tile_memory, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    linger();
    __atomic_store_n(&map_info.memHandle.memHandle, tile_other, __ATOMIC_RELAXED);
}

static void tiles(void) {
    CUDA_ARRAY3D_DESCRIPTOR sparse = {
        .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4, .Flags = CUDA_ARRAY3D_SPARSE};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle one, other;
    CUarray made;
    cuArray3DCreate_v2(&made, &sparse);
    cuMemCreate(&other, 2 * MIB, &properties, 0);
    map_info =
        (CUarrayMapInfo){.resource.array = made, .memOperationType = CU_MEM_OPERATION_TYPE_MAP, .deviceBitMask = 1};
    map_info.subresource.sparseLevel.extentWidth = map_info.subresource.sparseLevel.extentHeight = 16;
    map_info.subresource.sparseLevel.extentDepth = 1;
    tile_other = other;
    for (unsigned int i = 0; again(); i++) {
        if (cuMemCreate(&one, 8 * MIB, &properties, 0) != CUDA_SUCCESS) break;
        __atomic_store_n(&tile_memory, one, __ATOMIC_RELAXED);
        map_info.subresource.sparseLevel.offsetX = 16 * (i % 256);
        map_info.subresource.sparseLevel.offsetY = 16 * (i / 256 % 256);
        cuMemMapArrayAsync(&map_info, 1, NULL);
        cuMemRelease(one);
    }
}

/* A stream that is being captured when the library looks and isn't when the driver does. */
static CUstream stream;

static void capture(void) {
    CUgraph recorded;
    if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS)
        cuStreamEndCapture(stream, &recorded);
}

static CUresult take_from_stream(CUdeviceptr *pointer) {
    return cuMemAllocAsync(pointer, 64 * MIB, stream);
}

static void captured(void) {
    fill(take_from_stream, free_linear);
}

/* A device that has another pool when the library asks than when the driver takes from it. */
static CUmemoryPool pools[2];

static void change_pool(void) {
    cuDeviceSetMemPool(0, pools[0]);
    cuDeviceSetMemPool(0, pools[1]);
}

static CUresult take_from_device(CUdeviceptr *pointer) {
    return cuMemAllocAsync(pointer, 64 * MIB, NULL);
}

static void device_pool(void) {
    fill(take_from_device, free_linear);
}

/* A pool gives back what it kept just when the card is asked what a module took. */
static void keep_and_trim(void) {
    CUdeviceptr pointer;
    if (cuMemAllocAsync(&pointer, 64 * MIB, NULL) != CUDA_SUCCESS) return;
    cuMemFreeAsync(pointer, NULL);
    cuStreamSynchronize(NULL);
}

static CUresult take_module(CUdeviceptr *loaded) {
    static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .align 4 .b8 table[67108864];\n";
    return cuModuleLoadData((CUmodule *)loaded, image);
}

static void unload_module(CUdeviceptr loaded) {
    cuModuleUnload((CUmodule)(uintptr_t)loaded);
}

static void trim(void) {
    fill(take_module, unload_module);
}

static const struct {
    const char *name;
    void (*take)(void);
    void (*meddle)(void);
} cases[] = {
    {"pitch", pitch, overwrite_number},
    {"location", location, flip_location},
    {"pool", pool, flip_pool_location},
    {"array", array, flip_width},
    {"array-handle", array_handle, steal},
    {"module", module, steal},
    {"graph", graph, steal},
    {"contexts", contexts, steal},
    {"tiles", tiles, swap_tile},
    {"captured", captured, capture},
    {"device-pool", device_pool, change_pool},
    {"trim", trim, keep_and_trim},
};

int main(int argc, char **argv) {
    pthread_t thread;
    CUmemAllocationProp vmm = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolProps pooled = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    shared_properties = &vmm;
    pool_properties = &pooled;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuStreamCreate(&stream, 1) != CUDA_SUCCESS ||
        cuMemPoolCreate(&pools[0], &pooled) != CUDA_SUCCESS || cuMemPoolCreate(&pools[1], &pooled) != CUDA_SUCCESS)
        return 1;
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0) continue;
        meddle = cases[i].meddle;
        if (pthread_create(&thread, NULL, meddler, NULL) != 0) return 1;
        while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
            continue;
        cases[i].take();
        __atomic_store_n(&over, true, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
        puts("held");
        fflush(stdout);
        while (getchar() != EOF)
            continue;
        return 0;
    }
    fprintf(stderr, "%s: no such case\n", argc > 1 ? argv[1] : "");
    return 2;
}
