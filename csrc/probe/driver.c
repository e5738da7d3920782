#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static char failure[256];

/* A data pointer from the loader as a function pointer: ISO C has no cast for it. */
static void store(void *slot, void *address) {
    memcpy(slot, &address, sizeof address);
}

struct finder {
    void *handle;
    CUresult (*get_proc_address)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);
};

static void *find(const struct finder *finder, const char *symbol, const char *name, int since) {
    if (finder->get_proc_address == NULL) return dlsym(finder->handle, symbol);
    void *address = NULL;
    CUdriverProcAddressQueryResult found;
    /* Asked by the version of each function, as a program compiled for the oldest toolkit that has it would. */
    if (finder->get_proc_address(name, &address, since, 0, &found) != CUDA_SUCCESS) return NULL;
    return address;
}

const char *probe_driver_open(struct probe_driver *driver, enum probe_route route) {
    memset(driver, 0, sizeof *driver);
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | (route == PROBE_ROUTE_DEFAULT ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == NULL) {
        snprintf(failure, sizeof failure, "no NVIDIA driver here: %s", dlerror());
        return failure;
    }
    struct finder finder = {.handle = route == PROBE_ROUTE_DEFAULT ? RTLD_DEFAULT : handle};
    if (route == PROBE_ROUTE_GETPROC) store(&finder.get_proc_address, dlsym(handle, "cuGetProcAddress_v2"));
#define X(symbol, name, since, parameters) store(&driver->symbol, find(&finder, #symbol, name, since));
    PROBE_NEEDED(X)
    PROBE_OPTIONAL(X)
#undef X
#define X(symbol, name, since, parameters)                                                                             \
    if (driver->symbol == NULL) return "this driver lacks " #symbol;
    PROBE_NEEDED(X)
#undef X
    CUresult code = driver->cuInit(0);
    if (code != CUDA_SUCCESS) {
        snprintf(failure, sizeof failure, "cuInit is refused: %s%s", probe_driver_code(driver, code).text,
                 code == CUDA_ERROR_NOT_PERMITTED ? ": no usable quota here, see the line of libvgpu on stderr" : "");
        return failure;
    }
    driver->cuDriverGetVersion(&driver->version);
    code = driver->cuDeviceGetCount(&driver->device_count);
    if (code != CUDA_SUCCESS || driver->device_count == 0) return "the driver shows no device";
    return NULL;
}

struct probe_code probe_driver_code(const struct probe_driver *driver, CUresult code) {
    struct probe_code out;
    const char *name = NULL;
    if (driver->cuGetErrorName == NULL || driver->cuGetErrorName(code, &name) != CUDA_SUCCESS || name == NULL) {
        name = "CUDA error";
    }
    snprintf(out.text, sizeof out.text, "%s (%d)", name, (int)code);
    return out;
}

bool probe_driver_uuid(const struct probe_driver *driver, CUdevice device, char uuid[48]) {
    CUuuid card;
    CUuuid own;
    if (driver->cuDeviceGetUuid == NULL || driver->cuDeviceGetUuid(&card, device) != CUDA_SUCCESS) return false;
    /* Of a MIG device the newer function tells its own UUID, the older one the card's. */
    if (driver->cuDeviceGetUuid_v2 == NULL || driver->cuDeviceGetUuid_v2(&own, device) != CUDA_SUCCESS) own = card;
    int length = snprintf(uuid, 48, memcmp(&own, &card, sizeof own) == 0 ? "GPU" : "MIG");
    for (unsigned i = 0; i < 16; i++) {
        const char *dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        length += snprintf(uuid + length, 48 - (size_t)length, "%s%02x", dash, (unsigned char)own.bytes[i]);
    }
    return true;
}

const char *probe_library_version(int *abi) {
    const char *(*version)(void) = NULL;
    int (*number)(void) = NULL;
    store(&version, dlsym(RTLD_DEFAULT, "vgpu_version"));
    store(&number, dlsym(RTLD_DEFAULT, "vgpu_abi"));
    if (version == NULL || number == NULL) return NULL;
    *abi = number();
    return version();
}
