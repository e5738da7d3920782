/* Clocks that cost no system call. */
#ifndef VGPU_CLOCK_H
#define VGPU_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t vgpu_clock_ns(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Steps of a few milliseconds, about 6 ns to read: good enough to notice that a second has passed. */
static inline uint64_t vgpu_clock_coarse_ns(void) {
    return vgpu_clock_ns(CLOCK_MONOTONIC_COARSE);
}

#endif
