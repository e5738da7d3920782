/* Hooks without a body of their own: straight to the driver. Weak, so that a body elsewhere replaces it. */
#include "hooks.h"

#define CU(symbol, base, since, stream, what, parameters, arguments)                                                   \
    __attribute__((weak)) CUresult symbol parameters {                                                                 \
        return real_##symbol arguments;                                                                                \
    }
#define NVML(symbol, what, parameters, arguments)                                                                      \
    __attribute__((weak)) nvmlReturn_t symbol parameters {                                                             \
        return real_##symbol arguments;                                                                                \
    }
#include "hooks.def"
