/* cuMemsetD…: fills the pages behind device addresses. */
#include <string.h>

#include "copy.h"
#include "stream.h"

static void fill(CUdeviceptr target, unsigned value, unsigned element, uint64_t count) {
    void *at = (void *)(uintptr_t)target;
    switch (element) {
    case 1:
        memset(at, (int)value, count);
        break;
    case 2:
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)at)[i] = (uint16_t)value;
        break;
    default:
        for (uint64_t i = 0; i < count; i++)
            ((uint32_t *)at)[i] = value;
    }
}

CUresult set_2d(CUdeviceptr target, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height) {
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    if (target % element || (height > 1 && pitch < width * element)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t kept;
    TRY(range_check(target, (height - 1) * pitch + width * element, true, &kept));
    for (uint64_t row = 0; row < height && row * pitch < kept; row++) {
        uint64_t room = (kept - row * pitch) / element;
        fill(target + row * pitch, value, element, width < room ? width : room);
    }
    return CUDA_SUCCESS;
}

#define SET(bits, type)                                                                                                \
    CUAPI(cuMemsetD##bits##_v2, (CUdeviceptr target, type value, size_t count)) {                                      \
        ENTER_CONTEXT();                                                                                               \
        return set_2d(target, 0, value, bits / 8, count, 1);                                                           \
    }                                                                                                                  \
    CUAPI(cuMemsetD##bits, (CUdeviceptr_v1 target, type value, unsigned count)) {                                      \
        ENTER_CONTEXT();                                                                                               \
        return set_2d(target, 0, value, bits / 8, count, 1);                                                           \
    }                                                                                                                  \
    CUAPI(cuMemsetD##bits##Async, (CUdeviceptr target, type value, size_t count, CUstream stream)) {                   \
        ENTER_CONTEXT();                                                                                               \
        TRY(stream_check(stream));                                                                                     \
        struct capture *capture = stream_capture(stream);                                                              \
        if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMSET, NULL);                                    \
        return set_2d(target, 0, value, bits / 8, count, 1);                                                           \
    }                                                                                                                  \
    CUAPI(cuMemsetD2D##bits##_v2, (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height)) {       \
        ENTER_CONTEXT();                                                                                               \
        return set_2d(target, pitch, value, bits / 8, width, height);                                                  \
    }                                                                                                                  \
    CUAPI(cuMemsetD2D##bits, (CUdeviceptr_v1 target, unsigned pitch, type value, unsigned width, unsigned height)) {   \
        ENTER_CONTEXT();                                                                                               \
        return set_2d(target, pitch, value, bits / 8, width, height);                                                  \
    }                                                                                                                  \
    CUAPI(cuMemsetD2D##bits##Async,                                                                                    \
          (CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream)) {              \
        ENTER_CONTEXT();                                                                                               \
        TRY(stream_check(stream));                                                                                     \
        struct capture *capture = stream_capture(stream);                                                              \
        if (capture) return capture_node(capture, CU_GRAPH_NODE_TYPE_MEMSET, NULL);                                    \
        return set_2d(target, pitch, value, bits / 8, width, height);                                                  \
    }

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned)
