/* The table of the driver's functions that symbols.c makes of symbols.def. */
#ifndef SIMGPU_SYMBOLS_H
#define SIMGPU_SYMBOLS_H

#include <stdbool.h>

#include "cuda_api.h"

struct symbol {
    const char *name;     /* as cuGetProcAddress is asked */
    const void *function; /* what is exported for it */
    int version;          /* since when, 11030 is 11.3 */
    bool per_thread;      /* for the per-thread default stream */
};

/* Sorted by name, then per_thread, then version. */
extern const struct symbol symbols[];
extern const unsigned symbols_count;

CUresult sim_not_supported(void);

#endif
