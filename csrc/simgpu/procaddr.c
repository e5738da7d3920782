/* cuGetProcAddress: by name, version and kind of default stream, from symbols.def. */
#include <string.h>

#include "driver.h"
#include "symbols.h"

/* First entry of that name, symbols_count if there is none. */
static unsigned first_of(const char *name) {
    unsigned low = 0, high = symbols_count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (strcmp(symbols[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < symbols_count && strcmp(symbols[low].name, name) == 0 ? low : symbols_count;
}

/* Programs look everything up before they initialise, so the answer doesn't wait for that. */
static bool is_missing(const char *name) {
    if (driver_alive()) return sim_faults(&driver.view) && sim_fault_take(&driver.view, name) == SIM_FAULT_MISSING;
    return !driver.initialized && sim_symbol_missing(name);
}

static CUresult find(const char *name, void **function, int version, uint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(uint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    const struct symbol *best = NULL;
    bool known = false;
    for (unsigned i = first_of(name); i < symbols_count && strcmp(symbols[i].name, name) == 0; i++) {
        known = true;
        if (symbols[i].version > version) continue;
        if (symbols[i].per_thread && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) continue;
        /* Sorted: per-thread variants come last, and newer versions after older ones. */
        best = &symbols[i];
    }
    if (known && is_missing(name)) known = false, best = NULL;
    /* Function pointers become data pointers here, as in the driver's own interface. */
    memcpy(function, &(const void *){best ? best->function : NULL}, sizeof *function);
    if (status)
        *status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Works before cuInit. Of 11.3: anything not found is an error. */
CUAPI(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags)) {
    return find(name, function, version, flags, NULL);
}

/* Of 12.0: with a place for the status, "not found" is no error. */
CUAPI(cuGetProcAddress_v2,
      (const char *name, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)) {
    CUresult result = find(name, function, version, flags, status);
    return status && result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

/* The undocumented tables of the real driver aren't here. */
CUAPI(cuGetExportTable, (const void **table, const CUuuid *id)) {
    if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
