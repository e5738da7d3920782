/* Simulated NVML: life of the library, the system, and how devices are found. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_sim.h"

static pid_t life; /* the process that is in init, shutdown or the like */
static struct sim_view view;
static unsigned users; /* nvmlInit calls not yet answered by nvmlShutdown */
static struct nvmlDevice_st handles[SIM_MAX_CARDS * 2];

struct sim_view *nvml_view(void) {
    return &view;
}

/* ---- life ---- */

/* Among threads. What a forked child inherits locked was its parent's: it takes it over. */
static void life_lock(void) {
    pid_t self = getpid();
    for (;;) {
        pid_t holder = 0;
        if (__atomic_compare_exchange_n(&life, &holder, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
        if (holder != self &&
            __atomic_compare_exchange_n(&life, &holder, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            return;
        }
        sched_yield();
    }
}

static void life_unlock(void) {
    __atomic_store_n(&life, 0, __ATOMIC_RELEASE);
}

/* After a fork the child has the parent's count but not its view: joining again makes it whole. */
static bool usable(void) {
    if (sim_alive(&view)) return true;
    life_lock();
    bool joined = sim_refresh(&view);
    life_unlock();
    return joined;
}

static nvmlReturn_t asked_fault(const char *function) {
    if (!sim_faults(&view)) return NVML_SUCCESS;
    int32_t code = sim_fault_take(&view, function);
    return code == SIM_FAULT_MISSING ? NVML_ERROR_FUNCTION_NOT_FOUND : (nvmlReturn_t)code;
}

nvmlReturn_t nvml_enter(const char *function) {
    if (__atomic_load_n(&users, __ATOMIC_ACQUIRE) == 0) return NVML_ERROR_UNINITIALIZED;
    return usable() ? asked_fault(function) : NVML_ERROR_DRIVER_NOT_LOADED;
}

static nvmlReturn_t start(const char *function) {
    life_lock();
    bool joined = view.state != NULL ? sim_refresh(&view) : sim_join(&view, NULL, SIM_VIEWER) == 0;
    nvmlReturn_t code = joined ? asked_fault(function) : NVML_ERROR_DRIVER_NOT_LOADED;
    if (code == NVML_SUCCESS) __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    if (joined && users == 0) sim_leave(&view); /* refused: the next try may find another state */
    for (unsigned i = 0; i < SIM_MAX_CARDS * 2; i++) {
        handles[i] = (struct nvmlDevice_st){.card = i / 2, .instance = i % 2 != 0};
    }
    life_unlock();
    return code;
}

NVML(nvmlInit_v2, (void)) {
    return start(__func__);
}
NVML_ALIAS(nvmlInit, nvmlInit_v2, (void));

NVML(nvmlInitWithFlags, (unsigned flags)) {
    if ((flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) != 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return start(__func__);
}

NVML(nvmlShutdown, (void)) {
    life_lock();
    nvmlReturn_t code = users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
    if (users > 0 && __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE) == 0) sim_leave(&view);
    life_unlock();
    return code;
}

/* ---- system ---- */

static const char *const errors[] = {
    [NVML_SUCCESS] = "Success",
    [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
    [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
    [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
    [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
    [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
    [NVML_ERROR_NOT_FOUND] = "Not Found",
    [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
    [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
    [NVML_ERROR_TIMEOUT] = "Timeout",
    [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
    [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
    [NVML_ERROR_IN_USE] = "In use by another client",
    [NVML_ERROR_MEMORY] = "Insufficient Memory",
    [NVML_ERROR_NO_DATA] = "No data",
    [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
    [NVML_ERROR_NOT_READY] = "Not ready",
};

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t code);
const char *nvmlErrorString(nvmlReturn_t code) {
    if ((unsigned)code < sizeof errors / sizeof *errors && errors[code] != NULL) return errors[code];
    return "Unknown Error";
}

nvmlReturn_t nvml_text(char *out, unsigned room, const char *text) {
    size_t bytes = strlen(text) + 1;
    if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (bytes > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, bytes);
    return NVML_SUCCESS;
}

NVML(nvmlSystemGetDriverVersion, (char *version, unsigned room)) {
    NVML_ENTER();
    return nvml_text(version, room, SIM_DRIVER_VERSION);
}

NVML(nvmlSystemGetNVMLVersion, (char *version, unsigned room)) {
    NVML_ENTER();
    return nvml_text(version, room, "12." SIM_DRIVER_VERSION);
}

/* The only two questions that the vendor answers without an init. */
NVML(nvmlSystemGetCudaDriverVersion_v2, (int *version)) {
    if (version == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *version = SIM_CUDA_VERSION;
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2, (int *version));

NVML(nvmlSystemGetProcessName, (unsigned pid, char *name, unsigned room)) {
    NVML_ENTER();
    if (name == NULL || room == 0) return NVML_ERROR_INVALID_ARGUMENT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return NVML_ERROR_NOT_FOUND;
    size_t length = fread(name, 1, room - 1, file); /* cut off at its room, as the vendor does */
    name[length] = '\0';
    fclose(file);
    return NVML_SUCCESS;
}

/* nvidia-smi wants a table of this id before anything else, looks at its size and calls none of its slots. */
NVML(nvmlInternalGetExportTable, (const void **table, const void *id)) {
    static const uint64_t empty[9] = {sizeof empty};
    static const unsigned char table_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                               0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    if (table == NULL || id == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (memcmp(id, table_id, 16) != 0) return NVML_ERROR_NOT_FOUND;
    *table = empty;
    return NVML_SUCCESS;
}

NVML(nvmlUnitGetCount, (unsigned *count)) {
    NVML_ENTER();
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

NVML(nvmlGetExcludedDeviceCount, (unsigned *count)) {
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlGetBlacklistDeviceCount, nvmlGetExcludedDeviceCount, (unsigned *count));

/* ---- handles ---- */

bool nvml_device_valid(nvmlDevice_t device) {
    uintptr_t offset = (uintptr_t)device - (uintptr_t)handles;
    if (offset >= sizeof handles || offset % sizeof *handles != 0) return false;
    return device->card < view.state->cards && (!device->instance || nvml_is_mig(device));
}

const struct sim_card_config *nvml_config(nvmlDevice_t device) {
    return &view.state->card[device->card].config;
}

bool nvml_is_mig(nvmlDevice_t device) {
    return strncmp(nvml_config(device)->uuid, "MIG-", 4) == 0;
}

nvmlDevice_t nvml_card(unsigned card) {
    return &handles[card * 2];
}

nvmlDevice_t nvml_instance(unsigned card) {
    return &handles[card * 2 + 1];
}

void nvml_uuid(nvmlDevice_t device, char uuid[64]) {
    const struct sim_card_config *config = nvml_config(device);
    snprintf(uuid, 64, "%.63s", config->uuid);
    if (!nvml_is_mig(device) || device->instance) return;
    unsigned first;
    char digits[3];
    if (sscanf(uuid, "MIG-%2x", &first) != 1) return;
    snprintf(digits, sizeof digits, "%02x", (first ^ SIM_MIG_PARENT) & 0xff);
    memcpy(uuid, "GPU-", 4);
    memcpy(uuid + 4, digits, 2);
}

NVML(nvmlDeviceGetCount_v2, (unsigned *count)) {
    NVML_ENTER();
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = view.state->cards;
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2, (unsigned *count));

NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device)) {
    NVML_ENTER();
    if (device == NULL || index >= view.state->cards) return NVML_ERROR_INVALID_ARGUMENT;
    *device = nvml_card(index);
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device));

NVML(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device)) {
    NVML_ENTER();
    if (uuid == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < view.state->cards * 2; i++) {
        char own[64];
        if (!nvml_device_valid(&handles[i])) continue;
        nvml_uuid(&handles[i], own);
        if (strcmp(uuid, own) != 0) continue;
        *device = &handles[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device)) {
    NVML_ENTER();
    if (bus_id == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned domain;
    unsigned bus;
    unsigned slot;
    if (sscanf(bus_id, "%x:%x:%x.0", &domain, &bus, &slot) != 3) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < view.state->cards; i++) {
        if (domain != 0 || bus != nvml_pci_bus(i) || slot != 0) continue;
        *device = nvml_card(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
NVML_ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2, (const char *id, nvmlDevice_t *device));

NVML(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *device)) {
    NVML_ENTER();
    if (serial == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < view.state->cards; i++) {
        char own[NVML_DEVICE_SERIAL_BUFFER_SIZE];
        nvml_serial(i, own);
        if (strcmp(serial, own) != 0) continue;
        *device = nvml_card(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned *index)) {
    NVML_ENTER_DEVICE(device, index);
    *index = device->instance ? 0 : device->card;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned *minor)) {
    NVML_ENTER_DEVICE(device, minor);
    *minor = device->card;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned room)) {
    NVML_ENTER_DEVICE(device, uuid);
    char own[64];
    nvml_uuid(device, own);
    return nvml_text(uuid, room, own);
}
