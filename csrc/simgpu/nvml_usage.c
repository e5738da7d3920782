/* Simulated NVML: what changes while the card is used: memory, utilisation, and who uses it.
 *
 * Process lists name pids as the host sees them, whoever asks: the driver knows no other. Where the host hasn't been
 * able to look yet (`simgpu serve`), a process of another pid namespace is listed by its own number. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_sim.h"

#define WINDOW_NS UINT64_C(1000000000) /* over which utilisation is told */

/* ---- memory ---- */

static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    const struct sim_card_config *config = nvml_config(device);
    if (config->unified != 0) return NVML_ERROR_NOT_SUPPORTED;
    out->total = config->total_bytes;
    out->reserved = config->reserved_bytes;
    sim_reap(nvml_view()); /* a process killed a moment ago holds nothing */
    out->free = sim_free_bytes(nvml_view(), device->card);
    out->used = out->total - out->reserved - out->free;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *out)) {
    NVML_ENTER_DEVICE(device, out);
    nvmlMemory_v2_t newest;
    nvmlReturn_t code = memory(device, &newest);
    if (code != NVML_SUCCESS) return code;
    *out = (nvmlMemory_t){.total = newest.total, .free = newest.free, .used = newest.used + newest.reserved};
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *out)) {
    NVML_ENTER_DEVICE(device, out);
    if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return memory(device, out);
}

NVML(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t device, nvmlBAR1Memory_t *out)) {
    NVML_ENTER_DEVICE(device, out);
    *out = (nvmlBAR1Memory_t){.bar1Total = 256 * SIM_MIB, .bar1Free = 253 * SIM_MIB, .bar1Used = 3 * SIM_MIB};
    return NVML_SUCCESS;
}

/* ---- utilisation ---- */

static unsigned busy_percent(nvmlDevice_t device) {
    return sim_card_busy_percent(nvml_view(), device->card, WINDOW_NS);
}

NVML(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *out)) {
    NVML_ENTER_DEVICE(device, out);
    if (nvml_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    out->gpu = busy_percent(device);
    out->memory = out->gpu / 2;
    return NVML_SUCCESS;
}

static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
    if (!nvml_device_valid(device) || percent == NULL || period_us == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *percent = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetEncoderUtilization, (nvmlDevice_t device, unsigned *percent, unsigned *period_us)) {
    NVML_ENTER();
    return idle_engine(device, percent, period_us);
}

NVML(nvmlDeviceGetDecoderUtilization, (nvmlDevice_t device, unsigned *percent, unsigned *period_us)) {
    NVML_ENTER();
    return idle_engine(device, percent, period_us);
}

NVML(nvmlDeviceGetTemperature, (nvmlDevice_t device, unsigned sensor, unsigned *celsius)) {
    NVML_ENTER_DEVICE(device, celsius);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = 35 + busy_percent(device) / 4;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetPowerUsage, (nvmlDevice_t device, unsigned *milliwatt)) {
    NVML_ENTER_DEVICE(device, milliwatt);
    *milliwatt = 10000 + busy_percent(device) * 600;
    return NVML_SUCCESS;
}

NVML(nvmlDeviceGetPerformanceState, (nvmlDevice_t device, int *state)) {
    NVML_ENTER_DEVICE(device, state);
    *state = busy_percent(device) > 0 ? NVML_PSTATE_0 : NVML_PSTATE_8;
    return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState, (nvmlDevice_t, int *));

/* ---- processes ---- */

/* Who is on the card now. The caller frees *list; its length, or -1 without host memory. */
static int snapshot(nvmlDevice_t device, struct sim_process **list) {
    *list = malloc(SIM_MAX_SLOTS * sizeof **list);
    if (*list == NULL) return -1;
    unsigned count = sim_processes(nvml_view(), device->card, *list, SIM_MAX_SLOTS);
    return (int)(count < SIM_MAX_SLOTS ? count : SIM_MAX_SLOTS);
}

static unsigned long long total(const struct sim_process *process) {
    unsigned long long sum = 0;
    for (unsigned kind = 0; kind < SIM_KINDS; kind++)
        sum += process->bytes[kind];
    return sum;
}

/* All three versions: `entry_bytes` is the struct's size, of which the first is the newest one's beginning. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, void *entries, size_t entry_bytes) {
    struct sim_process *list;
    int found = snapshot(device, &list);
    if (found < 0) return NVML_ERROR_MEMORY;
    nvmlReturn_t code = NVML_SUCCESS;
    if (*count < (unsigned)found || (entries == NULL && found > 0)) {
        code = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        bool mig = nvml_is_mig(device);
        for (int i = 0; i < found; i++) {
            nvmlProcessInfo_t entry = {
                .pid = (unsigned)list[i].pid,
                .usedGpuMemory = total(&list[i]),
                .gpuInstanceId = mig ? NVML_SIM_GPU_INSTANCE : 0xffffffff,
                .computeInstanceId = mig ? NVML_SIM_COMPUTE_INSTANCE : 0xffffffff,
            };
            memcpy((char *)entries + (size_t)i * entry_bytes, &entry, entry_bytes);
        }
    }
    *count = (unsigned)found;
    free(list);
    return code;
}

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24, "process entries");

NVML(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries)) {
    NVML_ENTER_DEVICE(device, count);
    return list_processes(device, count, entries, sizeof *entries);
}

NVML(nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *entries)) {
    NVML_ENTER_DEVICE(device, count);
    return list_processes(device, count, entries, sizeof *entries);
}

NVML(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)) {
    NVML_ENTER_DEVICE(device, count);
    return list_processes(device, count, entries, sizeof *entries);
}

/* Nothing draws on these cards, and there is no MPS server. */
#define NOBODY(name)                                                                                                   \
    NVML(name, (nvmlDevice_t device, unsigned *count, void *entries)) {                                                \
        (void)entries;                                                                                                 \
        NVML_ENTER_DEVICE(device, count);                                                                              \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }                                                                                                                  \
    struct nvmlDevice_st

NOBODY(nvmlDeviceGetGraphicsRunningProcesses);
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2);
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2);
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3);

NVML(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)) {
    NVML_ENTER_DEVICE(device, list);
    if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode > 2) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->mode != 0) {
        list->numProcArrayEntries = 0;
        return NVML_SUCCESS;
    }
    struct sim_process *found;
    int count = snapshot(device, &found);
    if (count < 0) return NVML_ERROR_MEMORY;
    nvmlReturn_t code = NVML_SUCCESS;
    if (list->numProcArrayEntries < (unsigned)count || (list->procArray == NULL && count > 0)) {
        code = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        for (int i = 0; i < count; i++) {
            list->procArray[i] = (nvmlProcessDetail_v1_t){
                .pid = (unsigned)found[i].pid,
                .usedGpuMemory = total(&found[i]),
                .gpuInstanceId = nvml_is_mig(device) ? NVML_SIM_GPU_INSTANCE : 0xffffffff,
                .computeInstanceId = nvml_is_mig(device) ? NVML_SIM_COMPUTE_INSTANCE : 0xffffffff,
            };
        }
    }
    list->numProcArrayEntries = (unsigned)count;
    free(found);
    return code;
}

static unsigned long long wall_clock_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* One sample a process that kept the card busy in the last second, none newer than now. */
NVML(nvmlDeviceGetProcessUtilization,
     (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count, unsigned long long last_seen_us)) {
    NVML_ENTER_DEVICE(device, count);
    unsigned long long now_us = wall_clock_us();
    struct sim_process *list;
    int found = snapshot(device, &list);
    if (found < 0) return NVML_ERROR_MEMORY;
    unsigned busy = 0;
    bool fits = samples != NULL;
    for (int i = 0; i < found && last_seen_us < now_us; i++) {
        unsigned percent = sim_slot_busy_percent(nvml_view(), list[i].slot, device->card, WINDOW_NS);
        if (percent == 0) continue;
        fits = fits && busy < *count;
        if (fits) {
            samples[busy] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned)list[i].pid, .timeStamp = now_us, .smUtil = percent, .memUtil = percent / 2};
        }
        busy++;
    }
    free(list);
    /* Asked for the size only, the vendor tells room for all processes that it might have samples of. */
    *count = samples == NULL ? (unsigned)found : busy;
    if (samples == NULL) return found == 0 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INSUFFICIENT_SIZE;
    if (busy == 0) return NVML_ERROR_NOT_FOUND;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* ---- events: none ever happen ---- */

struct nvmlEventSet_st {
    char nothing;
};

NVML(nvmlEventSetCreate, (nvmlEventSet_t * set)) {
    NVML_ENTER();
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

NVML(nvmlEventSetFree, (nvmlEventSet_t set)) {
    NVML_ENTER();
    free(set);
    return NVML_SUCCESS;
}

NVML(nvmlDeviceRegisterEvents, (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)) {
    NVML_ENTER_DEVICE(device, set);
    return types == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML(nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)) {
    NVML_ENTER();
    if (set == NULL || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec pause = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
    return NVML_ERROR_TIMEOUT;
}
NVML_ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2, (nvmlEventSet_t, nvmlEventData_t *, unsigned));
