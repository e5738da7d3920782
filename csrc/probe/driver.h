/* The driver as any program finds it: libcuda.so.1 by dlopen, then each function by cuGetProcAddress_v2, or by dlsym
 * where the driver has no such look-up or --route says so. Nothing is linked against it. */
#ifndef VGPU_PROBE_DRIVER_H
#define VGPU_PROBE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_api.h"

enum probe_route {
    PROBE_ROUTE_GETPROC, /* cuGetProcAddress_v2: the CUDA runtime, cuda-bindings */
    PROBE_ROUTE_DLSYM,   /* dlsym on the handle: numba, many loaders */
    PROBE_ROUTE_DEFAULT, /* dlopen(RTLD_GLOBAL), then dlsym(RTLD_DEFAULT): as a linked program resolves */
};

/* symbol, name and version that cuGetProcAddress knows it by, the function's parameters.
 * A function that is missing from the driver stays NULL; those that the probe can't do without are in PROBE_NEEDED. */
#define PROBE_NEEDED(X)                                                                                                \
    X(cuInit, "cuInit", 2000, (unsigned))                                                                              \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *))                                                         \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *))                                                             \
    X(cuDeviceGet, "cuDeviceGet", 2000, (CUdevice *, int))                                                             \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, (char *, int, CUdevice))                                               \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, (size_t *, CUdevice))                                             \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext *, CUdevice))                             \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext))                                                           \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                                              \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, (size_t *, size_t *))                                                     \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, (CUdeviceptr *, size_t))                                                      \
    X(cuMemFree_v2, "cuMemFree", 3020, (CUdeviceptr))                                                                  \
    X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, (CUdeviceptr, const void *, size_t))                                      \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, (void *, CUdeviceptr, size_t))
#define PROBE_OPTIONAL(X)                                                                                              \
    X(cuGetErrorName, "cuGetErrorName", 6000, (CUresult, const char **))                                               \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, (CUuuid *, CUdevice))                                                  \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, (CUuuid *, CUdevice))                                              \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, (CUdeviceptr *, size_t, CUstream))                                    \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr, CUstream))                                                \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, (CUdeviceptr *, size_t, unsigned))                                 \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                                           \
      (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                                       \
    X(cuMemCreate, "cuMemCreate", 10020,                                                                               \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                       \
    X(cuMemRelease, "cuMemRelease", 10020, (CUmemGenericAllocationHandle))                                             \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020,                                                               \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                                \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, (CUdeviceptr, size_t))                                              \
    X(cuMemMap, "cuMemMap", 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))    \
    X(cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr, size_t))                                                          \
    X(cuMemSetAccess, "cuMemSetAccess", 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                 \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule *, const void *))                                          \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, (CUfunction *, CUmodule, const char *))                        \
    X(cuLaunchKernel, "cuLaunchKernel", 4000,                                                                          \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

struct probe_driver {
    int device_count;
    int version; /* CUDA version that the driver supports: 12020 is 12.2 */
#define X(symbol, name, since, parameters) CUresult(*symbol) parameters;
    PROBE_NEEDED(X) PROBE_OPTIONAL(X)
#undef X
};

struct probe_code {
    char text[64];
};

/* Opens and initialises the driver. Returns NULL, or a sentence that says what is wrong. */
const char *probe_driver_open(struct probe_driver *driver, enum probe_route route);
/* "CUDA_ERROR_OUT_OF_MEMORY (2)" */
struct probe_code probe_driver_code(const struct probe_driver *driver, CUresult code);
/* "GPU-xxxxxxxx-xxxx-…", or "MIG-…"; false where the driver can't tell. */
bool probe_driver_uuid(const struct probe_driver *driver, CUdevice device, char uuid[48]);
/* Version of the isolation library loaded into this process, NULL where there is none. */
const char *probe_library_version(int *abi);

#endif
