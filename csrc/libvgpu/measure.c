#include "measure.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks.h"
#include "pool.h"

#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC) /* inode of the host's own pid namespace, fixed in the kernel */

/* Room for so many bytes; what was in it is lost. A forked child gets none of it. */
static bool make_room(struct vgpu_list *list, size_t bytes) {
    if (bytes <= list->room_bytes) return true;
    size_t room_bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    void *memory = mmap(NULL, room_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    madvise(memory, room_bytes, MADV_DONTFORK);
    if (list->memory) munmap(list->memory, list->room_bytes);
    *list = (struct vgpu_list){memory, room_bytes};
    return true;
}

/* Who is on the card, into process->running: as many as there are. Others come while it is asked. */
static bool list_processes(struct vgpu_process *process, nvmlDevice_t device, unsigned int *count) {
    struct vgpu_list *list = &process->running;
    unsigned int wanted = 1;
    for (int attempt = 0; attempt < 8 && make_room(list, wanted * sizeof(nvmlProcessInfo_t)); attempt++) {
        wanted = *count = (unsigned int)(list->room_bytes / sizeof(nvmlProcessInfo_t));
        nvmlReturn_t result = real_nvmlDeviceGetComputeRunningProcesses_v3(device, count, list->memory);
        if (result == NVML_ERROR_FUNCTION_NOT_FOUND) { /* a driver before 510, whose struct is the same */
            *count = wanted;
            result = real_nvmlDeviceGetComputeRunningProcesses_v2(device, count, list->memory);
        }
        if (result == NVML_SUCCESS) return *count <= wanted;
        if (result != NVML_ERROR_INSUFFICIENT_SIZE) return false;
        wanted = *count > wanted ? *count : wanted * 2;
    }
    return false;
}

static bool in_first_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 && status.st_ino == FIRST_PID_NAMESPACE;
}

static void note_seen(struct vgpu_process *process, const nvmlProcessInfo_t *running, unsigned int count) {
    process->seen_count = 0;
    if (!make_room(&process->seen, count * sizeof(uint32_t))) return;
    uint32_t *seen = process->seen.memory;
    for (; process->seen_count < count; process->seen_count++)
        seen[process->seen_count] = running[process->seen_count].pid;
}

static bool was_seen(const struct vgpu_process *process, uint32_t pid) {
    const uint32_t *seen = process->seen.memory;
    for (unsigned int i = 0; i < process->seen_count; i++)
        if (seen[i] == pid) return true;
    return false;
}

/* Which of them is this process? NVML knows processes by the host's numbers. On the host itself that is ours. Elsewhere
 * it is the one that appeared with our first context; where several did, it shows later, as the one that holds just
 * what we are charged for. */
static void find_own(struct vgpu_process *process, struct vgpu_measure *measure, const struct vgpu_measure *before,
                     unsigned int count) {
    const nvmlProcessInfo_t *running = process->running.memory;
    uint32_t candidate = 0;
    unsigned int candidates = 0;
    if (measure->first_context && !before) {
        if (in_first_namespace()) process->host_pid = (uint32_t)getpid();
        note_seen(process, running, count);
        return;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (measure->first_context ? was_seen(process, running[i].pid)
                                   : running[i].usedGpuMemory != measure->charged_bytes)
            continue;
        candidate = running[i].pid;
        if (candidates++ == 0 || running[i].usedGpuMemory < measure->least_fresh_bytes)
            measure->least_fresh_bytes = running[i].usedGpuMemory;
    }
    if (measure->first_context) measure->fresh = candidates;
    if (candidates == 1) process->host_pid = candidate;
}

static uint64_t charged_bytes(const struct vgpu_process *process, int device) {
    const struct vgpu_member *member = process->member;
    const uint64_t *used_bytes = member->region->slots[member->slot].used_bytes[device];
    uint64_t sum = 0;
    for (int kind = 0; kind < VGPU_KINDS; kind++)
        sum += used_bytes[kind];
    return sum;
}

/* NVML is kept initialised: the first time costs milliseconds, and modules are loaded by the hundred. Asked also where
 * it told no total: it lists the processes of a card with unified memory and of a MIG device all the same. */
static bool find_device(struct vgpu_process *process, int device, nvmlDevice_t *handle) {
    if (!process->nvml_held && vgpu_real_load_nvml()) process->nvml_held = real_nvmlInit_v2() == NVML_SUCCESS;
    return process->nvml_held &&
           real_nvmlDeviceGetHandleByUUID(process->member->region->devices[device].uuid, handle) == NVML_SUCCESS;
}

static void look_for_own(struct vgpu_process *process, nvmlDevice_t handle, struct vgpu_measure *measure,
                         const struct vgpu_measure *before) {
    unsigned int count;
    if (!list_processes(process, handle, &count)) return;
    const nvmlProcessInfo_t *running = process->running.memory;
    if (!process->host_pid) find_own(process, measure, before, count);
    measure->has_own = process->host_pid || (measure->first_context && !before);
    for (unsigned int i = 0; process->host_pid && i < count; i++)
        if (running[i].pid == process->host_pid) {
            measure->listed = true;
            measure->has_own = running[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE;
            measure->own_bytes = running[i].usedGpuMemory;
        }
}

/* While no request is in flight, the ledger says of each what the card does. What pools gave back by themselves is
 * entered first. */
static void take_stock(struct vgpu_process *process, int device, struct vgpu_measure *measure,
                       const struct vgpu_measure *before) {
    int kept_errno = errno;
    *measure = (struct vgpu_measure){.device = device, .first_context = process->context_count == 0};
    nvmlDevice_t handle;
    nvmlMemory_t memory;
    vgpu_gate_close(&process->gate);
    vgpu_pools_settle(process);
    measure->charged_bytes = charged_bytes(process, device);
    if (find_device(process, device, &handle)) {
        look_for_own(process, handle, measure, before);
        measure->has_free = real_nvmlDeviceGetMemoryInfo(handle, &memory) == NVML_SUCCESS;
        measure->free_bytes = measure->has_free ? memory.free : 0;
    }
    vgpu_gate_open(&process->gate);
    errno = kept_errno;
}

void vgpu_measure_start(struct vgpu_process *process, int device, struct vgpu_measure *before) {
    take_stock(process, device, before, NULL);
}

/* false if the card can't tell. */
static bool change(struct vgpu_process *process, const struct vgpu_measure *before, int64_t least, int64_t most,
                   int64_t *bytes) {
    struct vgpu_measure after;
    take_stock(process, before->device, &after, before);
    /* What this process asked for meanwhile, in other threads, was charged already. */
    int64_t asked_bytes = (int64_t)(after.charged_bytes - before->charged_bytes);
    if (before->has_own && after.has_own && (before->listed || after.listed)) {
        *bytes = (int64_t)(after.own_bytes - before->own_bytes) - asked_bytes;
        if (*bytes >= least && *bytes <= most) return true;
    }
    process->charged_ahead = true; /* what follows is at best near */
    /* Several processes start at once: ours has a context and nothing else, so it is among the least. */
    *bytes = (int64_t)after.least_fresh_bytes;
    if (after.fresh > 1 && *bytes >= least && *bytes <= most) return true;
    if (after.has_free && before->has_free) {
        *bytes = (int64_t)(before->free_bytes - after.free_bytes) - asked_bytes;
        if (*bytes >= least && *bytes <= most) return true;
    }
    return false;
}

uint64_t vgpu_measure_end(struct vgpu_process *process, const struct vgpu_measure *before, uint64_t least_bytes,
                          uint64_t most_bytes, uint64_t otherwise_bytes) {
    int64_t bytes;
    return change(process, before, (int64_t)least_bytes, (int64_t)most_bytes, &bytes) ? (uint64_t)bytes
                                                                                      : otherwise_bytes;
}

int64_t vgpu_measure_change(struct vgpu_process *process, const struct vgpu_measure *before, uint64_t otherwise_bytes) {
    int64_t bytes, most = (int64_t)(UINT64_C(1) << 40);
    return change(process, before, -most, most, &bytes) ? bytes : (int64_t)otherwise_bytes;
}

uint64_t vgpu_measure_surplus(struct vgpu_process *process, int device) {
    struct vgpu_measure now = {.device = device};
    nvmlDevice_t handle;
    if (!vgpu_measure_can_tell(process) || process->in_debt || process->stale) return 0;
    int kept_errno = errno;
    if (find_device(process, device, &handle)) look_for_own(process, handle, &now, NULL);
    vgpu_pools_settle(process); /* a pool may have given something back just before the card was asked */
    errno = kept_errno;
    uint64_t charged = charged_bytes(process, device);
    return now.has_own && now.listed && charged > now.own_bytes ? charged - now.own_bytes : 0;
}
