/* A driver of a few functions for the route tests: libcuda.so.1 by soname, linked -Bsymbolic as the real one.
 * ROUTE_OLDER leaves out what older drivers lack; ROUTE_UNEXPORTED makes cuGetProcAddress hand out addresses that no
 * symbol has. It knows one function that no list can know: cuMemAlloc_v9. */
#include <string.h>

#include "cuda_api.h"

#define EXPORT __attribute__((visibility("default")))
/* Distinct bodies: the linker must not fold them into one address. */
#define FUNCTION(name, number)                                                                                         \
    EXPORT int name(void);                                                                                             \
    int name(void) {                                                                                                   \
        return number;                                                                                                 \
    }                                                                                                                  \
    static int unexported_##name(void) {                                                                               \
        return number + 1000;                                                                                          \
    }

FUNCTION(cuInit, 0)
FUNCTION(cuMemAlloc, 701)
FUNCTION(cuMemAlloc_v2, 702)
FUNCTION(cuMemAlloc_v9, 709)
FUNCTION(cuLaunchKernel, 710)
FUNCTION(cuLaunchKernel_ptsz, 711)
FUNCTION(cuStreamQuery, 712)
#ifndef ROUTE_OLDER
FUNCTION(cuMemAllocAsync, 713)
#endif

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                                    CUdriverProcAddressQueryResult *status);

#ifdef ROUTE_UNEXPORTED
#define GIVE(name) (void *)unexported_##name
#else
#define GIVE(name) (void *)name
#endif

static const struct {
    const char *base;
    int since, per_thread;
    void *address, *unused;
} functions[] = {
    {"cuInit", 2000, 0, GIVE(cuInit), unexported_cuInit},
    {"cuMemAlloc", 2000, 0, GIVE(cuMemAlloc), unexported_cuMemAlloc},
    {"cuMemAlloc", 3020, 0, GIVE(cuMemAlloc_v2), unexported_cuMemAlloc_v2},
    {"cuMemAlloc", 99000, 0, (void *)cuMemAlloc_v9, unexported_cuMemAlloc_v9},
    {"cuLaunchKernel", 4000, 0, GIVE(cuLaunchKernel), unexported_cuLaunchKernel},
    {"cuLaunchKernel", 7000, 1, GIVE(cuLaunchKernel_ptsz), unexported_cuLaunchKernel_ptsz},
    {"cuStreamQuery", 2000, 0, GIVE(cuStreamQuery), unexported_cuStreamQuery},
#ifndef ROUTE_OLDER
    {"cuMemAllocAsync", 11020, 0, GIVE(cuMemAllocAsync), unexported_cuMemAllocAsync},
#endif
    {"cuGetProcAddress", 11030, 0, (void *)cuGetProcAddress, NULL},
    {"cuGetProcAddress", 12000, 0, (void *)cuGetProcAddress_v2, NULL},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    CUdriverProcAddressQueryResult unused;
    if (!symbol || !pfn) return CUDA_ERROR_INVALID_VALUE;
    if (!status) status = &unused;
    *pfn = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].base, symbol) != 0 || functions[i].per_thread > per_thread) continue;
        if (functions[i].since <= cuda_version) *pfn = functions[i].address;
        *status = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, NULL);
}
