/* Checked ways to the data behind addresses. */
#ifndef SIMGPU_COPY_H
#define SIMGPU_COPY_H

#include "memory.h"

/* Checks that `bytes` from `address` on are memory a kernel could touch (device, managed, pinned) and says how many of
 * them are kept; `writing` marks them as touched. INVALID_VALUE else. Takes driver.lock itself. */
CUresult range_check(CUdeviceptr address, uint64_t bytes, bool writing, uint64_t *kept_bytes);
/* The same for an address that may be any host memory too. */
CUresult range_check_unified(CUdeviceptr address, uint64_t bytes, bool writing, uint64_t *kept_bytes);

CUresult copy_bytes(CUdeviceptr target, bool target_device, CUdeviceptr source, bool source_device, uint64_t bytes);
CUresult copy_3d(const CUDA_MEMCPY3D *copy);
CUresult set_2d(CUdeviceptr target, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height);

/* Pinned host memory (host.c). */
bool host_find_locked(const void *address, CUdeviceptr *base, size_t *bytes, CUcontext *context);
bool host_find(const void *address, void **base, size_t *bytes);
/* What is mapped at an address of a reservation (vmm.c): base and size of the mapping, its device (-1: host) and the
 * handle types that it may be exported as; false if nothing. Locked. */
bool mapped_find_locked(CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes, int *device, unsigned *types);
/* Mapped part of a reservation (vmm.c): bytes that can be reached from the address on, 0 if not mapped. Locked. */
uint64_t mapped_bytes_locked(CUdeviceptr address);

#endif
