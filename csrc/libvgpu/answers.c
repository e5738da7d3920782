/* How much memory there is, as this container sees it: one total (the limit), one used (the region's), one free (what
 * the limit leaves, but no more than the card really has), in CUDA and in NVML alike. Without a limit the driver
 * answers. */
#include <string.h>

#include "body.h"
#include "devices.h"
#include "pool.h"

struct answer {
    uint64_t total, used, free;
};

/* false: there is no limit, the driver's own answer holds. */
static bool answer_for(struct vgpu_process *process, int device, uint64_t real_total, uint64_t real_free,
                       struct answer *answer) {
    if ((unsigned)device >= VGPU_MAX_DEVICES) return false;
    uint64_t limit = process->limit_bytes[device];
    if (limit == VGPU_UNLIMITED || limit == 0) return false;
    answer->total = real_total && real_total < limit ? real_total : limit;
    answer->used = vgpu_used(process, device);
    if (answer->used > answer->total) /* the limit was lowered below what is held */
        answer->used = answer->total;
    answer->free = answer->total - answer->used;
    if (answer->free > real_free) answer->free = real_free;
    return true;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    VGPU_BEGIN_UNGATED(process, real_cuMemGetInfo_v2(free, total));
    struct vgpu_place place;
    struct answer answer;
    CUresult result = real_cuMemGetInfo_v2(free, total);
    if (result != CUDA_SUCCESS || !free || !total || !vgpu_place_current(process, &place)) return result;
    vgpu_pools_settle(process);
    if (answer_for(process, place.device, *total, *free, &answer)) {
        *total = answer.total;
        *free = answer.free;
    }
    return result;
}

static unsigned int narrowed(uint64_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    VGPU_BEGIN_UNGATED(process, real_cuMemGetInfo(free, total));
    struct vgpu_place place;
    struct answer answer;
    size_t real_free = 0, real_total = 0;
    CUresult result = real_cuMemGetInfo(free, total);
    if (result != CUDA_SUCCESS || !free || !total || !vgpu_place_current(process, &place) ||
        real_cuMemGetInfo_v2(&real_free, &real_total) != CUDA_SUCCESS)
        return result;
    vgpu_pools_settle(process);
    if (answer_for(process, place.device, real_total, real_free, &answer)) {
        *total = narrowed(answer.total);
        *free = narrowed(answer.free);
    }
    return result;
}

/* The limit if it is below what the driver says. */
static uint64_t limited(const struct vgpu_process *process, CUdevice ordinal, uint64_t real_total) {
    if (ordinal < 0 || ordinal >= process->cuda_devices) return real_total;
    uint64_t limit = process->limit_bytes[process->index_of[ordinal]];
    return limit != 0 && limit < real_total ? limit : real_total;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    VGPU_BEGIN_UNGATED(process, real_cuDeviceTotalMem_v2(bytes, dev));
    CUresult result = real_cuDeviceTotalMem_v2(bytes, dev);
    if (result == CUDA_SUCCESS && bytes) *bytes = limited(process, dev, *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    VGPU_BEGIN_UNGATED(process, real_cuDeviceTotalMem(bytes, dev));
    size_t real_total = 0;
    CUresult result = real_cuDeviceTotalMem(bytes, dev);
    if (result == CUDA_SUCCESS && bytes && real_cuDeviceTotalMem_v2(&real_total, dev) == CUDA_SUCCESS)
        *bytes = narrowed(limited(process, dev, real_total));
    return result;
}

/* NVML alone is enough to know the limit: nvidia-smi never starts CUDA. false: the driver's own answer holds. */
static bool answer_nvml(nvmlDevice_t device, uint64_t real_total, uint64_t real_free, struct answer *answer) {
    struct vgpu_process *process = vgpu_enter_as(false);
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE];
    nvmlDevice_t instance;
    unsigned int from = 0;
    memset(answer, 0, sizeof *answer);
    if (process->state == VGPU_REFUSED) /* no quota, no memory */
        return true;
    if (process->state == VGPU_NEW || real_nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS) return false;
    int index = vgpu_devices_find(process, uuid);
    /* Of a card that is split into MIG devices the container has the first that can be seen. */
    if (index < 0 && vgpu_devices_next_instance(device, &from, &instance) &&
        real_nvmlDeviceGetUUID(instance, uuid, sizeof uuid) == NVML_SUCCESS)
        index = vgpu_devices_find(process, uuid);
    return answer_for(process, index, real_total, real_free, answer);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct answer answer;
    nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo(device, memory);
    if (result == NVML_SUCCESS && memory && answer_nvml(device, memory->total, memory->free, &answer)) {
        memory->total = answer.total;
        memory->used = answer.used;
        memory->free = answer.free;
    }
    return result;
}

/* `reserved` is what the driver keeps of the card; none of it is the container's. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct answer answer;
    nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (result == NVML_SUCCESS && memory && answer_nvml(device, memory->total, memory->free, &answer)) {
        memory->total = answer.total;
        memory->reserved = 0;
        memory->used = answer.used;
        memory->free = answer.free;
    }
    return result;
}
