#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "hooks.h"
#include "message.h"

int vgpu_devices_find(const struct vgpu_process *process, const char *uuid) {
    const struct vgpu_region *region = process->member->region;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++)
        if (strncmp(region->devices[i].uuid, uuid, VGPU_UUID_BYTES) == 0) return i;
    return -1;
}

/* Finds the device or gives it a place, at `wish` if that is free. -1 if there is none. */
static int enter(struct vgpu_process *process, const char *uuid, int wish) {
    struct vgpu_region *region = process->member->region;
    int index = vgpu_devices_find(process, uuid);
    if (index >= 0) return index;
    if (vgpu_region_lock(process->member) != 0) return -1;
    index = vgpu_devices_find(process, uuid);
    for (int i = 0; index < 0 && i < VGPU_MAX_DEVICES; i++) {
        int at = (wish + i) % VGPU_MAX_DEVICES;
        if (region->devices[at].uuid[0] != '\0') continue;
        memcpy(region->devices[at].uuid, uuid, strlen(uuid) + 1);
        if (region->header.device_count <= (uint32_t)at) region->header.device_count = (uint32_t)at + 1;
        index = at;
    }
    vgpu_region_unlock(process->member);
    return index;
}

static bool nvml_uuid(nvmlDevice_t device, char uuid[NVML_DEVICE_UUID_BUFFER_SIZE]) {
    return real_nvmlDeviceGetUUID(device, uuid, NVML_DEVICE_UUID_BUFFER_SIZE) == NVML_SUCCESS &&
           strlen(uuid) < VGPU_UUID_BYTES;
}

static void enter_from_nvml(struct vgpu_process *process, nvmlDevice_t device, unsigned int *next) {
    nvmlMemory_t memory;
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE] = "";
    int wish = (int)(*next)++;
    int index = nvml_uuid(device, uuid) ? enter(process, uuid, wish) : -1;
    if (index >= 0 && real_nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS)
        process->nvml_total_bytes[index] = memory.total;
}

bool vgpu_devices_next_instance(nvmlDevice_t card, unsigned int *from, nvmlDevice_t *instance) {
    unsigned int most = 0;
    if (real_nvmlDeviceGetMaxMigDeviceCount(card, &most) != NVML_SUCCESS) return false;
    while (*from < most)
        if (real_nvmlDeviceGetMigDeviceHandleByIndex(card, (*from)++, instance) == NVML_SUCCESS) return true;
    return false;
}

/* A card of which this container has MIG devices is none of its devices. */
void vgpu_devices_from_nvml(struct vgpu_process *process) {
    unsigned int count = 0, next = 0;
    if (!vgpu_real_load_nvml() || real_nvmlInit_v2() != NVML_SUCCESS) return;
    if (real_nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS) count = 0;
    for (unsigned int i = 0; i < count && next < VGPU_MAX_DEVICES; i++) {
        nvmlDevice_t device, instance;
        unsigned int instances = 0, first = next;
        if (real_nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS) {
            next++;
            continue;
        }
        while (next < VGPU_MAX_DEVICES && vgpu_devices_next_instance(device, &instances, &instance))
            enter_from_nvml(process, instance, &next);
        if (next == first) enter_from_nvml(process, device, &next);
    }
    real_nvmlShutdown();
}

/* MIG instances have a UUID of their own in the newer function, the card's in the older. */
static bool cuda_uuid(CUdevice device, char *text, size_t room) {
    CUuuid uuid, card;
    bool instance = false;
    if (real_cuDeviceGetUuid(&card, device) != CUDA_SUCCESS) return false;
    if (real_cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
        instance = memcmp(&uuid, &card, sizeof uuid) != 0;
    else
        uuid = card;
    int length = snprintf(text, room, instance ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        length +=
            snprintf(text + length, room - (size_t)length, "%s%02x",
                     i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", (unsigned)(unsigned char)uuid.bytes[i]);
    return true;
}

CUresult vgpu_devices_from_cuda(struct vgpu_process *process) {
    int count = 0;
    CUresult result = real_cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS) return result;
    if (count > VGPU_MAX_DEVICES) return CUDA_ERROR_NOT_PERMITTED;
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CUdevice device;
        char uuid[VGPU_UUID_BYTES];
        size_t total = 0;
        if ((result = real_cuDeviceGet(&device, ordinal)) != CUDA_SUCCESS) return result;
        if (!cuda_uuid(device, uuid, sizeof uuid))
            snprintf(uuid, sizeof uuid, "ordinal-%d", ordinal); /* a driver before 9.2 */
        int index = enter(process, uuid, ordinal);
        if (index < 0) return CUDA_ERROR_NOT_PERMITTED;
        process->index_of[ordinal] = (uint8_t)index;
        if (real_cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS) continue;
        process->cuda_total_bytes[index] = total;
        /* NVML counts what the driver keeps for itself too, which is little. A fraction of more is no quota. */
        if (process->nvml_total_bytes[index] > total + total / 16) process->nvml_total_bytes[index] = 0;
    }
    process->cuda_devices = count;
    return CUDA_SUCCESS;
}

static void publish(struct vgpu_process *process, int index, const struct vgpu_quota *quota, uint64_t card_bytes) {
    struct vgpu_region_device *device = &process->member->region->devices[index];
    if (vgpu_region_lock(process->member) != 0) return;
    device->physical_bytes = card_bytes;
    device->limit_bytes = quota->limit_bytes;
    device->limit_source = quota->source;
    device->unbelieved_bytes = quota->unbelieved_bytes;
    vgpu_region_unlock(process->member);
}

const char *vgpu_devices_decide(struct vgpu_process *process) {
    struct vgpu_quota quotas[VGPU_MAX_DEVICES];
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        uint64_t cuda_bytes = process->cuda_total_bytes[i], nvml_bytes = process->nvml_total_bytes[i];
        uint64_t card_bytes = nvml_bytes ? nvml_bytes : cuda_bytes;
        if (card_bytes == 0) continue;
        quotas[i] = vgpu_quota_decide(&process->texts, i, card_bytes, card_bytes);
        if (quotas[i].source == VGPU_SOURCE_UNUSABLE) {
            publish(process, i, &quotas[i], card_bytes);
            snprintf(process->why, sizeof process->why, "%s", quotas[i].why);
            return process->why;
        }
    }
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        uint64_t card_bytes =
            process->nvml_total_bytes[i] ? process->nvml_total_bytes[i] : process->cuda_total_bytes[i];
        if (card_bytes == 0) continue;
        __atomic_store_n(&process->limit_bytes[i], quotas[i].limit_bytes, __ATOMIC_RELAXED);
        publish(process, i, &quotas[i], card_bytes);
        vgpu_message(VGPU_INFO, "device %d: limit %llu bytes, source %d", i, (unsigned long long)quotas[i].limit_bytes,
                     (int)quotas[i].source);
    }
    return NULL;
}
