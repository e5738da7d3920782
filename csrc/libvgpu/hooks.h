/* The functions of hooks.def as C sees them: their numbers, the prototypes of the hooks under the driver's own names,
 * and the real functions as real_<symbol>().
 *
 * A hook is an ordinary exported definition of the driver's name; it reaches the driver by real_<symbol>() only
 * (its own name would lead back to it). How to add one: csrc/README.md. */
#ifndef VGPU_LIBVGPU_HOOKS_H
#define VGPU_LIBVGPU_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_api.h"
#include "nvml_api.h"
#include "real.h"

typedef CUDA_KERNEL_NODE_PARAMS CUDA_KERNEL_NODE_PARAMS_v1; /* which ends before `kern` */

/* The only names that leave the library (exports.ld.in lists the same ones). Protected: our own references to them
 * bind to ourselves, so that their addresses cost no relocation. */
#define VGPU_EXPORT __attribute__((visibility("protected")))

/* What a hook gives where the driver isn't loaded or lacks the function: only a caller that never looked it up, bound
 * to us by a weak reference, gets there. */
#define VGPU_NO_DRIVER CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
#define VGPU_NO_NVML   NVML_ERROR_FUNCTION_NOT_FOUND

enum vgpu_function {
#define CU(symbol, ...)   VGPU_FN_##symbol,
#define NVML(symbol, ...) VGPU_FN_##symbol,
#define LIBC(symbol)      VGPU_FN_##symbol,
#include "hooks.def"
    VGPU_HOOKS, /* entries of the name table */
    VGPU_FN_BEFORE_USED = VGPU_HOOKS - 1,
#define USE_CU(symbol, ...)   VGPU_FN_##symbol,
#define USE_NVML(symbol, ...) VGPU_FN_##symbol,
#include "hooks.def"
    VGPU_FUNCTIONS
};

#define CU(symbol, base, since, stream, what, parameters, arguments) VGPU_EXPORT CUresult symbol parameters;
#define NVML(symbol, what, parameters, arguments)                    VGPU_EXPORT nvmlReturn_t symbol parameters;
#include "hooks.def"

/* Does the loaded driver (or NVML) have this function? false while it isn't loaded. */
static inline bool vgpu_has(enum vgpu_function function) {
    return vgpu_real(function) != NULL;
}

#define VGPU_REAL(result, absent, symbol, parameters, arguments)                                                       \
    static inline result real_##symbol parameters {                                                                    \
        result(*real_function) parameters = (result(*) parameters)vgpu_real(VGPU_FN_##symbol);                         \
        return __builtin_expect(real_function != NULL, 1) ? real_function arguments : absent;                          \
    }
#define CU(symbol, base, since, stream, what, parameters, arguments)                                                   \
    VGPU_REAL(CUresult, VGPU_NO_DRIVER, symbol, parameters, arguments)
#define USE_CU(symbol, parameters, arguments)     VGPU_REAL(CUresult, VGPU_NO_DRIVER, symbol, parameters, arguments)
#define NVML(symbol, what, parameters, arguments) VGPU_REAL(nvmlReturn_t, VGPU_NO_NVML, symbol, parameters, arguments)
#define USE_NVML(symbol, parameters, arguments)   VGPU_REAL(nvmlReturn_t, VGPU_NO_NVML, symbol, parameters, arguments)
#include "hooks.def"

#endif
