/* Memory operations in stream order: writes take effect at once, waits are over at once. */
#include <string.h>

#include "copy.h"
#include "stream.h"

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned bytes, unsigned flags) {
    TRY(stream_check(stream));
    if (flags & ~1u || address % bytes) return CUDA_ERROR_INVALID_VALUE;
    uint64_t kept;
    TRY(range_check(address, bytes, true, &kept));
    if (kept == bytes) memcpy((void *)(uintptr_t)address, &value, bytes);
    return CUDA_SUCCESS;
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, unsigned bytes) {
    TRY(stream_check(stream));
    uint64_t kept;
    return address % bytes ? CUDA_ERROR_INVALID_VALUE : range_check(address, bytes, false, &kept);
}

#define VALUE(bits, type, suffix)                                                                                      \
    CUAPI(cuStreamWriteValue##bits##suffix, (CUstream stream, CUdeviceptr address, type value, unsigned flags)) {      \
        ENTER_CONTEXT();                                                                                               \
        return write_value(stream, address, value, bits / 8, flags);                                                   \
    }                                                                                                                  \
    CUAPI(cuStreamWaitValue##bits##suffix, (CUstream stream, CUdeviceptr address, type value, unsigned flags)) {       \
        (void)value, (void)flags;                                                                                      \
        ENTER_CONTEXT();                                                                                               \
        return wait_value(stream, address, bits / 8);                                                                  \
    }

VALUE(32, uint32_t, )
VALUE(32, uint32_t, _v2)
VALUE(64, uint64_t, )
VALUE(64, uint64_t, _v2)
