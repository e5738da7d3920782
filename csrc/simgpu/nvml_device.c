/* Simulated NVML: what a device is and how it is set up. Nothing here changes while the card exists. */
#include <stdio.h>
#include <string.h>

#include "nvml_sim.h"

void nvml_serial(unsigned card, char serial[NVML_DEVICE_SERIAL_BUFFER_SIZE]) {
    snprintf(serial, NVML_DEVICE_SERIAL_BUFFER_SIZE, "13251900%05u", card);
}

NVML(nvmlDeviceGetName, (nvmlDevice_t device, char *name, unsigned room)) {
    NVML_ENTER_DEVICE(device, name);
    return nvml_text(name, room, nvml_config(device)->name);
}

NVML(nvmlDeviceGetSerial, (nvmlDevice_t device, char *serial, unsigned room)) {
    NVML_ENTER_DEVICE(device, serial);
    char own[NVML_DEVICE_SERIAL_BUFFER_SIZE];
    nvml_serial(device->card, own);
    return nvml_text(serial, room, own);
}

NVML(nvmlDeviceGetBoardId, (nvmlDevice_t device, unsigned *id)) {
    NVML_ENTER_DEVICE(device, id);
    *id = nvml_pci_bus(device->card) << 8;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetVbiosVersion, (nvmlDevice_t device, char *version, unsigned room)) {
    NVML_ENTER_DEVICE(device, version);
    return nvml_text(version, room, "90.04.96.00.01");
}

NVML(nvmlDeviceGetBrand, (nvmlDevice_t device, int *brand)) {
    NVML_ENTER_DEVICE(device, brand);
    *brand = strncmp(nvml_config(device)->name, "Tesla", 5) == 0 ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *pci)) {
    NVML_ENTER_DEVICE(device, pci);
    memset(pci, 0, sizeof *pci);
    pci->bus = nvml_pci_bus(device->card);
    pci->pciDeviceId = 0x1eb810de;
    pci->pciSubSystemId = 0x12a210de;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xff);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xff);
    return NVML_SUCCESS;
}

/* The older form ends before the long bus id. */
NVML(nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, void *pci)) {
    nvmlPciInfo_t newest;
    if (pci == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = nvmlDeviceGetPciInfo_v3(device, &newest);
    if (code != NVML_SUCCESS) return code;
    unsigned reserved[4] = {0};
    memcpy(pci, &newest, offsetof(nvmlPciInfo_t, busId));
    memcpy((char *)pci + offsetof(nvmlPciInfo_t, busId), reserved, sizeof reserved);
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, void *pci));

NVML(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int *major, int *minor)) {
    NVML_ENTER_DEVICE(device, major);
    if (minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)nvml_config(device)->compute_major;
    *minor = (int)nvml_config(device)->compute_minor;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetArchitecture, (nvmlDevice_t device, unsigned *architecture)) {
    NVML_ENTER_DEVICE(device, architecture);
    enum { VOLTA = 5, TURING, AMPERE, ADA, HOPPER, BLACKWELL };
    unsigned major = nvml_config(device)->compute_major;
    unsigned minor = nvml_config(device)->compute_minor;
    switch (major) {
    case 7:
        *architecture = minor >= 5 ? TURING : VOLTA;
        return NVML_SUCCESS;
    case 8:
        *architecture = minor >= 9 ? ADA : AMPERE;
        return NVML_SUCCESS;
    default:
        *architecture = major == 9 ? HOPPER : BLACKWELL;
        return NVML_SUCCESS;
    }
}

NVML(nvmlDeviceGetNumGpuCores, (nvmlDevice_t device, unsigned *cores)) {
    NVML_ENTER_DEVICE(device, cores);
    *cores = nvml_config(device)->multiprocessors * 64;
    return NVML_SUCCESS;
}

/* One number that is the same for every device. */
#define CONSTANT(name, type, value)                                                                                    \
    NVML(name, (nvmlDevice_t device, type * out)) {                                                                    \
        NVML_ENTER_DEVICE(device, out);                                                                                \
        *out = (value);                                                                                                \
        return NVML_SUCCESS;                                                                                           \
    }                                                                                                                  \
    struct nvmlDevice_st

CONSTANT(nvmlDeviceGetMemoryBusWidth, unsigned, 256);
CONSTANT(nvmlDeviceGetMultiGpuBoard, unsigned, 0);
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 3);
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 3);
CONSTANT(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 3);
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16);
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16);
CONSTANT(nvmlDeviceGetPersistenceMode, int, NVML_FEATURE_ENABLED);
CONSTANT(nvmlDeviceGetPowerManagementMode, int, NVML_FEATURE_ENABLED);
CONSTANT(nvmlDeviceGetDisplayActive, int, NVML_FEATURE_DISABLED);
CONSTANT(nvmlDeviceGetDisplayMode, int, NVML_FEATURE_DISABLED);
CONSTANT(nvmlDeviceGetAccountingMode, int, NVML_FEATURE_DISABLED);
CONSTANT(nvmlDeviceGetComputeMode, int, NVML_COMPUTEMODE_DEFAULT);
CONSTANT(nvmlDeviceGetVirtualizationMode, int, NVML_GPU_VIRTUALIZATION_MODE_NONE);
CONSTANT(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0);
CONSTANT(nvmlDeviceGetPowerManagementLimit, unsigned, 70000);
CONSTANT(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 70000);
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, unsigned, 70000);

NVML(nvmlDeviceGetPowerManagementLimitConstraints, (nvmlDevice_t device, unsigned *least, unsigned *most)) {
    NVML_ENTER_DEVICE(device, least);
    if (most == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *least = 60000;
    *most = 70000;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetEccMode, (nvmlDevice_t device, int *current, int *pending)) {
    NVML_ENTER_DEVICE(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t device, int kind, int counter, unsigned long long *errors)) {
    NVML_ENTER_DEVICE(device, errors);
    if (kind < 0 || kind > 1 || counter < 0 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    *errors = 0;
    return NVML_SUCCESS;
}

/* Graphics, SM, memory, video; MHz. */
static const unsigned clocks_mhz[4] = {1590, 1590, 5001, 1470};

NVML(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, unsigned clock, unsigned *mhz)) {
    NVML_ENTER_DEVICE(device, mhz);
    if (clock >= 4) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = clocks_mhz[clock];
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetClockInfo, (nvmlDevice_t device, unsigned clock, unsigned *mhz)) {
    NVML_ENTER_DEVICE(device, mhz);
    if (clock >= 4) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = clocks_mhz[clock];
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetCpuAffinity, (nvmlDevice_t device, unsigned words, unsigned long *set)) {
    NVML_ENTER_DEVICE(device, set);
    for (unsigned i = 0; i < words; i++)
        set[i] = ~0UL;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t one, nvmlDevice_t other, int *level)) {
    NVML_ENTER_DEVICE(one, level);
    if (!nvml_device_valid(other)) return NVML_ERROR_INVALID_ARGUMENT;
    *level = one->card == other->card ? 0 : 30; /* same board, or same CPU */
    return NVML_SUCCESS;
}

/* ---- MIG ---- */

static bool can_mig(nvmlDevice_t device) {
    const struct sim_card_config *config = nvml_config(device);
    return nvml_is_mig(device) || (config->compute_minor == 0 && config->compute_major >= 8 && config->unified == 0);
}

NVML(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned *current, unsigned *pending)) {
    NVML_ENTER_DEVICE(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->instance || !can_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = nvml_is_mig(device) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned *count)) {
    NVML_ENTER_DEVICE(device, count);
    *count = can_mig(device) && !device->instance ? 7 : 0;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned *is)) {
    NVML_ENTER_DEVICE(device, is);
    *is = device->instance;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned index, nvmlDevice_t *instance)) {
    NVML_ENTER_DEVICE(device, instance);
    if (device->instance) return NVML_ERROR_INVALID_ARGUMENT;
    if (!nvml_is_mig(device) || index > 0) return NVML_ERROR_NOT_FOUND;
    *instance = nvml_instance(device->card);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t instance, nvmlDevice_t *device)) {
    NVML_ENTER_DEVICE(instance, device);
    if (!instance->instance) return NVML_ERROR_INVALID_ARGUMENT;
    *device = nvml_card(instance->card);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t instance, unsigned *id)) {
    NVML_ENTER_DEVICE(instance, id);
    if (!instance->instance) return NVML_ERROR_NOT_SUPPORTED;
    *id = NVML_SIM_GPU_INSTANCE;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t instance, unsigned *id)) {
    NVML_ENTER_DEVICE(instance, id);
    if (!instance->instance) return NVML_ERROR_NOT_SUPPORTED;
    *id = NVML_SIM_COMPUTE_INSTANCE;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetAttributes_v2, (nvmlDevice_t instance, nvmlDeviceAttributes_t *attributes)) {
    NVML_ENTER_DEVICE(instance, attributes);
    if (!instance->instance) return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = nvml_config(instance)->multiprocessors,
        .sharedCopyEngineCount = 1,
        .gpuInstanceSliceCount = 1,
        .computeInstanceSliceCount = 1,
        .memorySizeMB = nvml_config(instance)->total_bytes / SIM_MIB,
    };
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2, (nvmlDevice_t, nvmlDeviceAttributes_t *));
