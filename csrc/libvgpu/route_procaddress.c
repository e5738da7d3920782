/* cuGetProcAddress: the driver's answer, with our hook in place of each function that it stands for.
 *
 * The driver is always asked first, with what the program asked: whether there is an answer, and the status, are its
 * own. Which function that answer is, the address tells (it is one of the driver's exports); where a driver gives
 * addresses that it doesn't export, the CUDA version and the stream flag asked for. */
#include <stdio.h>
#include <string.h>

#include "hooks.h"
#include "names.h"

/* Are the first `length` characters of the symbol its base name, or all of it? */
static bool is_named(unsigned int function, size_t length) {
    return vgpu_name_entry(function)->base_length == length || vgpu_name_symbol(function)[length] == '\0';
}

/* Among versions that are all old enough: the per-thread form first (it is only looked at when asked for), then the
 * newest. */
static bool is_better(unsigned int function, unsigned int than) {
    const struct vgpu_name *one = vgpu_name_entry(function), *other;
    if (than == VGPU_HOOKS) return true;
    other = vgpu_name_entry(than);
    return one->per_thread != other->per_thread ? one->per_thread : one->since > other->since;
}

/* Is `address` a version of `name` that is newer than our list? Then its parameters are unknown to us. */
static bool is_unknown_version(const char *name, const void *address) {
    static const char *const forms[] = {"", "_ptsz", "_ptds"};
    enum { LAST_VERSION = 9 };
    char symbol[96];
    for (int version = 2; version <= LAST_VERSION; version++)
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
            snprintf(symbol, sizeof symbol, "%s_v%d%s", name, version, forms[i]);
            if (vgpu_name_find(symbol) == VGPU_HOOKS && vgpu_real_symbol(VGPU_DRIVER, symbol) == address) return true;
        }
    return false;
}

/* The hook for `address`, which the driver gave for `name`; `address` itself if it isn't ours. */
static void *hook_for(const char *name, void *address, int cuda_version, uint64_t flags) {
    size_t length = strlen(name);
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    unsigned int exported = VGPU_HOOKS, best = VGPU_HOOKS;
    unsigned int i = length ? vgpu_name_lower_bound(name) : VGPU_HOOKS;
    for (; i < VGPU_HOOKS && strncmp(vgpu_name_symbol(i), name, length) == 0; i++) {
        const void *real = vgpu_real(i);
        if (!real) continue;
        if (real == address && is_better(i, exported)) exported = i;
        if (is_named(i, length) && vgpu_name_entry(i)->since <= cuda_version &&
            (per_thread || !vgpu_name_entry(i)->per_thread) && is_better(i, best))
            best = i;
    }
    if (exported != VGPU_HOOKS && (best == VGPU_HOOKS || vgpu_real(best) != address)) best = exported;
    if (best == VGPU_HOOKS || (exported == VGPU_HOOKS && is_unknown_version(name, address))) return address;
    return vgpu_name_hook(best);
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, uint64_t flags) {
    CUresult result = real_cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = hook_for(symbol, *pfn, cudaVersion, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, uint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
    CUresult result = real_cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = hook_for(symbol, *pfn, cudaVersion, flags);
    return result;
}
