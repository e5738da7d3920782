#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static char failure[256];

static bool find(void *handle, const char *name, void *slot) {
    void *address = dlsym(handle, name);
    memcpy(slot, &address, sizeof address);
    return address != NULL;
}

const char *probe_nvml_open(struct probe_nvml *nvml) {
    memset(nvml, 0, sizeof *nvml);
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(failure, sizeof failure, "no NVML here: %s", dlerror());
        return failure;
    }
    bool complete = find(handle, "nvmlInit_v2", &nvml->init) && find(handle, "nvmlShutdown", &nvml->shutdown) &&
                    find(handle, "nvmlDeviceGetCount_v2", &nvml->get_count) &&
                    find(handle, "nvmlDeviceGetHandleByIndex_v2", &nvml->get_handle_by_index) &&
                    find(handle, "nvmlDeviceGetHandleByUUID", &nvml->get_handle_by_uuid) &&
                    find(handle, "nvmlDeviceGetUUID", &nvml->get_uuid) &&
                    find(handle, "nvmlDeviceGetName", &nvml->get_name) &&
                    find(handle, "nvmlDeviceGetMemoryInfo", &nvml->get_memory) &&
                    find(handle, "nvmlSystemGetDriverVersion", &nvml->get_driver_version);
    if (!complete) return "this NVML lacks a function that the probe needs";
    find(handle, "nvmlDeviceGetMemoryInfo_v2", &nvml->get_memory_v2); /* since driver 510 */
    nvmlReturn_t code = nvml->init();
    if (code == NVML_SUCCESS) return NULL;
    snprintf(failure, sizeof failure, "nvmlInit is refused with code %d", (int)code);
    return failure;
}

bool probe_nvml_memory(const struct probe_nvml *nvml, nvmlDevice_t device, struct probe_nvml_memory *memory) {
    nvmlMemory_v2_t second = {.version = nvmlMemory_v2};
    if (nvml->get_memory_v2 != NULL && nvml->get_memory_v2(device, &second) == NVML_SUCCESS) {
        *memory = (struct probe_nvml_memory){second.total, second.used, second.free};
        return true;
    }
    nvmlMemory_t first = {0};
    if (nvml->get_memory(device, &first) != NVML_SUCCESS) return false;
    *memory = (struct probe_nvml_memory){first.total, first.used, first.free};
    return true;
}

bool probe_nvml_find(const struct probe_nvml *nvml, const char *uuid, nvmlDevice_t *device) {
    return nvml->get_handle_by_uuid(uuid, device) == NVML_SUCCESS;
}
