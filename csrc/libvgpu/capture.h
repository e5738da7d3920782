/* While a stream is being captured, some calls fail and end the capture with them
 * (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED): cuMemAlloc and cuMemFree, questions about pools and their trimming, new
 * arrays. The program that doesn't make them mustn't suffer from those that this library makes, so around these the
 * thread's capture mode is a relaxed one. */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include "hooks.h"

static inline CUstreamCaptureMode vgpu_capture_mode(CUstreamCaptureMode wanted) {
    real_cuThreadExchangeStreamCaptureMode(&wanted);
    return wanted;
}

static inline void vgpu_capture_mode_back(const CUstreamCaptureMode *mode) {
    vgpu_capture_mode(*mode);
}

/* Until the end of the block. */
#define VGPU_CAPTURE_RELAXED                                                                                           \
    CUstreamCaptureMode capture_mode __attribute__((cleanup(vgpu_capture_mode_back), unused)) =                        \
        vgpu_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED)

#endif
