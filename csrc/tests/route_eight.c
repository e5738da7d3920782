/* Asks eight times for 1 GiB and says how often it got it: `route_eight WAY`.
 *     direct   linked with the driver       next     dlsym(RTLD_NEXT)
 *     dlsym    dlsym(handle)                get      cuGetProcAddress_v2
 *     async    cuMemAllocAsync              vmm      create, map, release the handle
 *     dlmopen  a driver in a namespace of its own
 *     both     that and the program's own in turns, each with a context
 * Any answer but success and out of memory is an error. What it got it keeps until it ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

enum { TIMES = 8, CUDA_VERSION = 11000 }; /* as of 11.4 cuCtxCreate has other parameters */
static const size_t GIB = (size_t)1 << 30;

typedef CUresult get_address(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

extern CUresult cuInit(unsigned int flags);
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
extern CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);

static const char *way;

static bool elsewhere; /* look into the namespace of its own */

static void *find(const char *symbol, const char *base) {
    static void *here, *there;
    void *found = NULL;
    if (elsewhere && !there) there = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!elsewhere && !here) here = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *driver = elsewhere ? there : here;
    if (strcmp(way, "get") == 0) {
        get_address *get = (get_address *)dlsym(driver, "cuGetProcAddress_v2");
        CUdriverProcAddressQueryResult status;
        get(base, &found, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    } else {
        found = dlsym(strcmp(way, "next") == 0 ? RTLD_NEXT : driver, symbol);
    }
    if (!found) {
        fprintf(stderr, "%s isn't found\n", symbol);
        exit(3);
    }
    return found;
}

static void check(const char *what, CUresult result) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(3);
    }
}

static CUresult ask_vmm(void) {
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) =
        (CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))find(
            "cuMemCreate", "cuMemCreate");
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) =
        (CUresult (*)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))find("cuMemAddressReserve",
                                                                                           "cuMemAddressReserve");
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) =
        (CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))find("cuMemMap",
                                                                                                          "cuMemMap");
    CUresult (*release)(CUmemGenericAllocationHandle) =
        (CUresult (*)(CUmemGenericAllocationHandle))find("cuMemRelease", "cuMemRelease");
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = create(&handle, GIB, &properties, 0);
    if (result != CUDA_SUCCESS) return result;
    check("cuMemAddressReserve", reserve(&address, GIB, 0, 0, 0));
    check("cuMemMap", map(address, GIB, 0, handle, 0));
    check("cuMemRelease", release(handle));
    return CUDA_SUCCESS;
}

static CUresult ask(void) {
    CUdeviceptr address;
    if (strcmp(way, "direct") == 0) return cuMemAlloc_v2(&address, GIB);
    if (strcmp(way, "vmm") == 0) return ask_vmm();
    if (strcmp(way, "async") == 0) {
        CUresult (*allocate)(CUdeviceptr *, size_t, CUstream) =
            (CUresult (*)(CUdeviceptr *, size_t, CUstream))find("cuMemAllocAsync", "cuMemAllocAsync");
        return allocate(&address, GIB, NULL);
    }
    CUresult (*allocate)(CUdeviceptr *, size_t) =
        (CUresult (*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2", "cuMemAlloc");
    return allocate(&address, GIB);
}

static void start(void) {
    CUcontext context;
    if (strcmp(way, "direct") == 0) {
        check("cuInit", cuInit(0));
        check("cuCtxCreate", cuCtxCreate_v2(&context, 0, 0));
        return;
    }
    check("cuInit", ((CUresult (*)(unsigned int))find("cuInit", "cuInit"))(0));
    check("cuCtxCreate",
          ((CUresult (*)(CUcontext *, unsigned int, CUdevice))find("cuCtxCreate_v2", "cuCtxCreate"))(&context, 0, 0));
}

int main(int count, char **arguments) {
    int granted = 0;
    if (count != 2) return 2;
    way = arguments[1];
    bool both = strcmp(way, "both") == 0;
    elsewhere = strcmp(way, "dlmopen") == 0;
    start();
    if (both) {
        elsewhere = true;
        start();
    }
    for (int i = 0; i < TIMES; i++) {
        if (both) elsewhere = i % 2;
        CUresult result = ask();
        if (result == CUDA_SUCCESS)
            granted++;
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            check("the request", result);
    }
    printf("%d of %d\n", granted, TIMES);
    fflush(stdout);
    getchar(); /* the card is looked at meanwhile */
    return 0;
}
