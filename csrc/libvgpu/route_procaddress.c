/* cuGetProcAddress: the driver's answer, with our hook in place of each function that it stands for.
 *
 * The driver is always asked first, with what the program asked: whether there is an answer, and the status, are its
 * own. Which function that answer means is told by the address (it is one of the driver's exports); where a driver
 * gives addresses of its own, by the CUDA version and the stream flag asked for. */
#include <stdio.h>
#include <string.h>

#include "hooks.h"
#include "names.h"

/* How many newer versions of a function than we know (`_v<n>`) are looked for in the driver. */
enum { NEWER_VERSIONS = 4 };

static bool has_base(unsigned int function, const char *name, size_t length) {
    return vgpu_name_entry(function)->base_length == length && strncmp(vgpu_name_symbol(function), name, length) == 0;
}

/* Does the driver export this address as a version of `name` that is newer than the list? Then it isn't ours. */
static bool is_unknown_version(const char *name, const void *address) {
    static const char *const streams[] = {"", "_ptsz", "_ptds"};
    char symbol[96];
    for (int version = 2; version < 10; version++)
        for (int i = 0; i < 3; i++) {
            snprintf(symbol, sizeof symbol, "%s_v%d%s", name, version, streams[i]);
            if (vgpu_name_find(symbol) == VGPU_HOOKS && vgpu_real_driver_symbol(symbol) == address) return true;
        }
    return false;
}

/* The hook for `address`, which the driver gave for `name`; `address` itself if it isn't one of ours. */
static void *hook_for(const char *name, void *address, int cuda_version, uint64_t flags) {
    size_t length = strlen(name);
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    unsigned int first = vgpu_name_lower_bound(name), best = VGPU_HOOKS;
    bool exported = false;
    for (unsigned int i = first; i < VGPU_HOOKS && strncmp(vgpu_name_symbol(i), name, length) == 0; i++) {
        const struct vgpu_name *entry = vgpu_name_entry(i);
        void *real = vgpu_real(i);
        if (!real) continue;
        bool fits = has_base(i, name, length) && entry->since <= cuda_version && (per_thread || !entry->per_thread);
        bool better =
            fits &&
            (best == VGPU_HOOKS || entry->per_thread > vgpu_name_entry(best)->per_thread ||
             (entry->per_thread == vgpu_name_entry(best)->per_thread && entry->since > vgpu_name_entry(best)->since));
        if (better) best = i;
        if (real == address && (!exported || better)) {
            exported = true;
        }
    }
    (void)exported;
    return best == VGPU_HOOKS || is_unknown_version(name, address) ? address : vgpu_name_hook(best);
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
