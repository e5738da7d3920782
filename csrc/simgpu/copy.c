/* Copies: real bytes move between the host and the pages behind device addresses. */
#include "copy.h"

#include <string.h>

#include "array.h"
#include "stream.h"

static CUresult check_device(CUdeviceptr address, uint64_t bytes, bool writing, uint64_t *kept) {
    driver_lock();
    struct memory *memory = memory_find(address);
    uint64_t room = 0, offset = 0;
    if (memory && memory->kind != MEMORY_ARRAY && memory->kind != MEMORY_SMALLS) {
        offset = address - memory->base;
        room = memory->kind == MEMORY_RESERVED ? mapped_bytes_locked(address)
               : offset < memory->size         ? memory->size - offset
                                               : 0;
    }
    CUresult result = room >= bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *kept = offset >= KEPT_BYTES ? 0 : bytes < KEPT_BYTES - offset ? bytes : KEPT_BYTES - offset;
        if (writing) memory_touch(memory);
        if (memory->kind == MEMORY_MANAGED) result = managed_resident_locked(memory, offset + bytes);
    }
    driver_unlock();
    return result;
}

CUresult range_check(CUdeviceptr address, uint64_t bytes, bool writing, uint64_t *kept) {
    if (LIKELY(arena_covers(address))) return check_device(address, bytes, writing, kept);
    void *base;
    size_t size;
    *kept = bytes;
    if (!host_find((void *)(uintptr_t)address, &base, &size)) return CUDA_ERROR_INVALID_VALUE;
    return address + bytes <= (uintptr_t)base + size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult range_check_unified(CUdeviceptr address, uint64_t bytes, bool writing, uint64_t *kept) {
    *kept = bytes;
    if (arena_covers(address)) return check_device(address, bytes, writing, kept);
    return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_bytes(CUdeviceptr target, bool target_device, CUdeviceptr source, bool source_device, uint64_t bytes) {
    if (bytes == 0) return CUDA_SUCCESS;
    uint64_t kept, readable;
    TRY(target_device ? range_check(target, bytes, true, &kept) : range_check_unified(target, bytes, true, &kept));
    TRY(source_device ? range_check(source, bytes, false, &readable)
                      : range_check_unified(source, bytes, false, &readable));
    memmove((void *)(uintptr_t)target, (const void *)(uintptr_t)source, kept);
    return CUDA_SUCCESS;
}

#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

/* One direction of copying, as plain, asynchronous and (where they differ) 32-bit functions. */
#define COPY(name, target_type, target_device, source_type, source_device)                                             \
    CUAPI(cuMemcpy##name##_v2, (target_type target, source_type source, size_t bytes)) {                               \
        ENTER_CONTEXT();                                                                                               \
        return copy_bytes((CUdeviceptr)target, target_device, (CUdeviceptr)source, source_device, bytes);              \
    }                                                                                                                  \
    CUAPI(cuMemcpy##name##Async_v2, (target_type target, source_type source, size_t bytes, CUstream stream)) {         \
        ENTER_CONTEXT();                                                                                               \
        TRY(stream_check(stream));                                                                                     \
        struct capture *capture = stream_capture(stream);                                                              \
        if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMCPY, NULL);                                    \
        return copy_bytes((CUdeviceptr)target, target_device, (CUdeviceptr)source, source_device, bytes);              \
    }

COPY(HtoD, CUdeviceptr, true, const void *, false)
COPY(DtoH, void *, false, CUdeviceptr, true)
COPY(DtoD, CUdeviceptr, true, CUdeviceptr, true)

CUAPI(cuMemcpyHtoD, (CUdeviceptr_v1 target, const void *source, unsigned bytes)) {
    ENTER_CONTEXT();
    return copy_bytes(target, true, HOST(source), false, bytes);
}

CUAPI(cuMemcpyDtoH, (void *target, CUdeviceptr_v1 source, unsigned bytes)) {
    ENTER_CONTEXT();
    return copy_bytes(HOST(target), false, source, true, bytes);
}

CUAPI(cuMemcpyDtoD, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned bytes)) {
    ENTER_CONTEXT();
    return copy_bytes(target, true, source, true, bytes);
}

CUAPI(cuMemcpy, (CUdeviceptr target, CUdeviceptr source, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_bytes(target, false, source, false, bytes);
}

CUAPI(cuMemcpyAsync, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    struct capture *capture = stream_capture(stream);
    if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMCPY, NULL);
    return copy_bytes(target, false, source, false, bytes);
}

CUAPI(cuMemcpyPeer,
      (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t bytes)) {
    ENTER_CONTEXT();
    TRY(context_check(target_context));
    TRY(context_check(source_context));
    return copy_bytes(target, true, source, true, bytes);
}

CUAPI(cuMemcpyPeerAsync, (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                          size_t bytes, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    TRY(context_check(target_context));
    TRY(context_check(source_context));
    struct capture *capture = stream_capture(stream);
    if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMCPY, NULL);
    return copy_bytes(target, true, source, true, bytes);
}

CUAPI(cuMemcpyBatchAsync_v2, (CUdeviceptr * targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                              const void *attributes, size_t *indexes, size_t attribute_count, CUstream stream)) {
    (void)attributes, (void)indexes, (void)attribute_count;
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!targets || !sources || !sizes || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        TRY(copy_bytes(targets[i], false, sources[i], false, sizes[i]));
    return CUDA_SUCCESS;
}

/* ---- two and three dimensions ---- */

struct side {
    CUdeviceptr base;
    uint64_t pitch, slice;
    bool device;
    bool array;
};

static CUresult side_of(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array, uint64_t x, uint64_t y,
                        uint64_t z, uint64_t pitch, uint64_t height, struct side *side) {
    *side = (struct side){.pitch = pitch, .slice = pitch * height};
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        side->base = HOST(host);
        break;
    case CU_MEMORYTYPE_DEVICE:
        side->base = device;
        side->device = true;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        side->base = device;
        break;
    case CU_MEMORYTYPE_ARRAY:
        if (!array_data(array, &side->base, &side->pitch, &side->slice)) return CUDA_ERROR_INVALID_HANDLE;
        side->array = true;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!side->base && !side->array) return CUDA_ERROR_INVALID_VALUE;
    side->base += z * side->slice + y * side->pitch + x;
    return CUDA_SUCCESS;
}

/* An array without data (sparse, or larger than is kept) swallows what is written and reads as nothing. */
static CUresult check_side(const struct side *side, const CUDA_MEMCPY3D *copy, bool writing, uint64_t *kept) {
    *kept = 0;
    if (side->array) {
        *kept = side->slice ? UINT64_MAX : 0;
        return CUDA_SUCCESS;
    }
    uint64_t bytes = (copy->Depth - 1) * side->slice + (copy->Height - 1) * side->pitch + copy->WidthInBytes;
    return side->device ? range_check(side->base, bytes, writing, kept)
                        : range_check_unified(side->base, bytes, writing, kept);
}

CUresult copy_3d(const CUDA_MEMCPY3D *copy) {
    struct side target, source;
    uint64_t kept, readable;
    if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0) return CUDA_SUCCESS;
    uint64_t source_pitch = copy->srcPitch ? copy->srcPitch : copy->WidthInBytes;
    uint64_t target_pitch = copy->dstPitch ? copy->dstPitch : copy->WidthInBytes;
    if (source_pitch < copy->WidthInBytes || target_pitch < copy->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    TRY(side_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray, copy->srcXInBytes, copy->srcY,
                copy->srcZ, source_pitch, copy->srcHeight ? copy->srcHeight : copy->Height, &source));
    TRY(side_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray, copy->dstXInBytes, copy->dstY,
                copy->dstZ, target_pitch, copy->dstHeight ? copy->dstHeight : copy->Height, &target));
    TRY(check_side(&source, copy, false, &readable));
    TRY(check_side(&target, copy, true, &kept));
    if (readable == 0) return CUDA_SUCCESS;
    for (uint64_t z = 0; z < copy->Depth; z++)
        for (uint64_t y = 0; y < copy->Height; y++) {
            uint64_t at = z * target.slice + y * target.pitch;
            if (at + copy->WidthInBytes > kept) return CUDA_SUCCESS;
            memmove((void *)(uintptr_t)(target.base + at),
                    (const void *)(uintptr_t)(source.base + z * source.slice + y * source.pitch), copy->WidthInBytes);
        }
    return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *copy) {
    CUDA_MEMCPY3D whole = {.srcXInBytes = copy->srcXInBytes,
                           .srcY = copy->srcY,
                           .srcMemoryType = copy->srcMemoryType,
                           .srcHost = copy->srcHost,
                           .srcDevice = copy->srcDevice,
                           .srcArray = copy->srcArray,
                           .srcPitch = copy->srcPitch,
                           .dstXInBytes = copy->dstXInBytes,
                           .dstY = copy->dstY,
                           .dstMemoryType = copy->dstMemoryType,
                           .dstHost = copy->dstHost,
                           .dstDevice = copy->dstDevice,
                           .dstArray = copy->dstArray,
                           .dstPitch = copy->dstPitch,
                           .WidthInBytes = copy->WidthInBytes,
                           .Height = copy->Height,
                           .Depth = 1};
    return copy_3d(&whole);
}

#define SHAPED(name, parameter_type, run)                                                                              \
    CUAPI(name, (const parameter_type *copy)) {                                                                        \
        ENTER_CONTEXT();                                                                                               \
        return copy ? run(copy) : CUDA_ERROR_INVALID_VALUE;                                                            \
    }
#define SHAPED_ASYNC(name, parameter_type, run)                                                                        \
    CUAPI(name, (const parameter_type *copy, CUstream stream)) {                                                       \
        ENTER_CONTEXT();                                                                                               \
        TRY(stream_check(stream));                                                                                     \
        struct capture *capture = stream_capture(stream);                                                              \
        if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMCPY, NULL);                                    \
        return copy ? run(copy) : CUDA_ERROR_INVALID_VALUE;                                                            \
    }

SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D, copy_2d)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, copy_2d)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D, copy_3d)
SHAPED(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, copy_3d)
SHAPED_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_2d)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy_3d)
SHAPED_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, copy_3d)

/* ---- arrays, one row ---- */

static CUresult copy_row(CUmemorytype from, CUmemorytype to, CUarray source_array, CUdeviceptr source,
                         uint64_t source_x, CUarray target_array, CUdeviceptr target, uint64_t target_x,
                         uint64_t bytes) {
    CUDA_MEMCPY3D copy = {.srcXInBytes = source_x,
                          .srcMemoryType = from,
                          .srcHost = (void *)(uintptr_t)source,
                          .srcDevice = source,
                          .srcArray = source_array,
                          .dstXInBytes = target_x,
                          .dstMemoryType = to,
                          .dstHost = (void *)(uintptr_t)target,
                          .dstDevice = target,
                          .dstArray = target_array,
                          .WidthInBytes = bytes,
                          .Height = 1,
                          .Depth = 1};
    return copy_3d(&copy);
}

CUAPI(cuMemcpyDtoA_v2, (CUarray target, size_t offset, CUdeviceptr source, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_row(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY, NULL, source, 0, target, 0, offset, bytes);
}

CUAPI(cuMemcpyAtoD_v2, (CUdeviceptr target, CUarray source, size_t offset, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_row(CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, source, 0, offset, NULL, target, 0, bytes);
}

CUAPI(cuMemcpyHtoA_v2, (CUarray target, size_t offset, const void *source, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_row(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY, NULL, HOST(source), 0, target, 0, offset, bytes);
}

CUAPI(cuMemcpyAtoH_v2, (void *target, CUarray source, size_t offset, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_row(CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, source, 0, offset, NULL, HOST(target), 0, bytes);
}

CUAPI(cuMemcpyAtoA_v2, (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t bytes)) {
    ENTER_CONTEXT();
    return copy_row(CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_ARRAY, source, 0, source_offset, target, 0, target_offset,
                    bytes);
}

CUAPI(cuMemcpyHtoAAsync_v2, (CUarray target, size_t offset, const void *source, size_t bytes, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return copy_row(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY, NULL, HOST(source), 0, target, 0, offset, bytes);
}

CUAPI(cuMemcpyAtoHAsync_v2, (void *target, CUarray source, size_t offset, size_t bytes, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return copy_row(CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, source, 0, offset, NULL, HOST(target), 0, bytes);
}
