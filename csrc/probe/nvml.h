/* What NVML says, the source of nvidia-smi's numbers. Optional: a container may have no libnvidia-ml.so.1. */
#ifndef VGPU_PROBE_NVML_H
#define VGPU_PROBE_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_api.h"

struct probe_nvml {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*shutdown)(void);
    nvmlReturn_t (*get_count)(unsigned *);
    nvmlReturn_t (*get_handle_by_index)(unsigned, nvmlDevice_t *);
    nvmlReturn_t (*get_handle_by_uuid)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned);
    nvmlReturn_t (*get_name)(nvmlDevice_t, char *, unsigned);
    nvmlReturn_t (*get_memory)(nvmlDevice_t, nvmlMemory_t *);
    nvmlReturn_t (*get_memory_v2)(nvmlDevice_t, nvmlMemory_v2_t *);
    nvmlReturn_t (*get_driver_version)(char *, unsigned);
};

struct probe_nvml_memory {
    uint64_t total, used, free;
};

/* Returns NULL, or a sentence that says why NVML can't be asked. */
const char *probe_nvml_open(struct probe_nvml *nvml);
/* By the version that nvidia-smi asks for, else the first one. False where NVML can't tell (unified memory). */
bool probe_nvml_memory(const struct probe_nvml *nvml, nvmlDevice_t device, struct probe_nvml_memory *memory);
/* The device that CUDA names so. */
bool probe_nvml_find(const struct probe_nvml *nvml, const char *uuid, nvmlDevice_t *device);

#endif
