#include "measure.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks.h"
#include "pool.h"

#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC) /* inode of the host's own pid namespace, fixed in the kernel */

static bool processes(nvmlDevice_t device, struct vgpu_measure *measure) {
    nvmlProcessInfo_t infos[VGPU_MAX_NVML_PROCESSES];
    unsigned int count = VGPU_MAX_NVML_PROCESSES;
    nvmlReturn_t result = real_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos);
    if (result ==
        NVML_ERROR_FUNCTION_NOT_FOUND) { /* a driver before 510: one struct less, the fields that matter same */
        count = VGPU_MAX_NVML_PROCESSES;
        result = real_nvmlDeviceGetComputeRunningProcesses_v2(device, &count, infos);
    }
    if (result != NVML_SUCCESS) return false;
    for (unsigned int i = 0; i < count && i < VGPU_MAX_NVML_PROCESSES; i++) {
        if (infos[i].usedGpuMemory == (unsigned long long)NVML_VALUE_NOT_AVAILABLE) return false;
        measure->processes[i].pid = infos[i].pid;
        measure->processes[i].bytes = infos[i].usedGpuMemory;
    }
    measure->count = count < VGPU_MAX_NVML_PROCESSES ? count : VGPU_MAX_NVML_PROCESSES;
    return true;
}

static void look(struct vgpu_process *process, int device, struct vgpu_measure *measure) {
    const struct vgpu_member *member = process->member;
    int kept_errno = errno;
    nvmlDevice_t handle;
    nvmlMemory_t memory;
    measure->has_processes = measure->has_free = false;
    measure->device = device;
    const uint64_t *own_bytes = member->region->slots[member->slot].used_bytes[device];
    measure->buffer_bytes = own_bytes[VGPU_KIND_BUFFER];
    measure->all_bytes = own_bytes[VGPU_KIND_CONTEXT] + own_bytes[VGPU_KIND_MODULE] + own_bytes[VGPU_KIND_BUFFER];
    /* Kept initialised: the first time costs milliseconds, and modules are loaded by the hundred. Asked also where NVML
     * told no total: it lists the processes of a card with unified memory and of a MIG device all the same. */
    if (!process->nvml_held && vgpu_real_load_nvml()) process->nvml_held = real_nvmlInit_v2() == NVML_SUCCESS;
    if (process->nvml_held) {
        if (real_nvmlDeviceGetHandleByUUID(member->region->devices[device].uuid, &handle) == NVML_SUCCESS) {
            measure->has_processes = processes(handle, measure);
            measure->has_free = real_nvmlDeviceGetMemoryInfo(handle, &memory) == NVML_SUCCESS;
            measure->free_bytes = memory.free;
        }
    }
    errno = kept_errno;
}

/* While no request is in flight, the ledger says of each what the card does. What pools gave back by themselves is
 * entered first. */
void vgpu_measure_start(struct vgpu_process *process, int device, struct vgpu_measure *measure) {
    vgpu_gate_close(&process->gate);
    vgpu_pools_settle(process);
    look(process, device, measure);
    vgpu_gate_open(&process->gate);
}

static uint64_t figure(const struct vgpu_measure *measure, uint32_t pid, bool *found) {
    *found = false;
    for (unsigned int i = 0; i < measure->count; i++)
        if (measure->processes[i].pid == pid) {
            *found = true;
            return measure->processes[i].bytes;
        }
    return 0;
}

/* NVML knows processes by the host's numbers. On the host itself that is ours. Elsewhere it is the one process that
 * appeared meanwhile; where several did, it shows later, as the one that holds just what we are charged for. 0 as long
 * as it can't be told; *least_fresh_bytes is then the least that a process which appeared holds. */
static uint32_t host_pid(struct vgpu_process *process, const struct vgpu_measure *before,
                         const struct vgpu_measure *after, uint64_t *least_fresh_bytes) {
    struct stat status;
    bool there;
    *least_fresh_bytes = 0;
    if (process->host_pid) return process->host_pid;
    int kept_errno = errno, failed = stat("/proc/self/ns/pid", &status);
    errno = kept_errno;
    if (!failed && status.st_ino == FIRST_PID_NAMESPACE) return process->host_pid = (uint32_t)getpid();
    uint32_t fresh = 0, fresh_found = 0, alike = 0, alike_found = 0;
    for (unsigned int i = 0; i < after->count; i++) {
        uint64_t then_bytes = figure(before, after->processes[i].pid, &there);
        if (!there) {
            fresh = after->processes[i].pid;
            if (fresh_found++ == 0 || after->processes[i].bytes < *least_fresh_bytes)
                *least_fresh_bytes = after->processes[i].bytes;
        } else if (then_bytes == before->all_bytes) {
            alike = after->processes[i].pid;
            alike_found++;
        }
    }
    if (process->context_count == 0 && fresh_found == 1)
        process->host_pid = fresh;
    else if (process->context_count != 0 && alike_found == 1)
        process->host_pid = alike;
    return process->host_pid;
}

/* false if the card can't tell. */
static bool change(struct vgpu_process *process, const struct vgpu_measure *before, int64_t least, int64_t most,
                   int64_t *bytes) {
    struct vgpu_measure after;
    bool found, was_there;
    vgpu_measure_start(process, before->device, &after);
    /* What this process asked for meanwhile, in other threads, was charged already. */
    int64_t asked_bytes = (int64_t)(after.buffer_bytes - before->buffer_bytes);
    if (after.has_processes && before->has_processes) {
        uint64_t least_fresh_bytes;
        uint32_t pid = host_pid(process, before, &after, &least_fresh_bytes);
        uint64_t now_bytes = figure(&after, pid, &found), then_bytes = figure(before, pid, &was_there);
        *bytes = (int64_t)(now_bytes - then_bytes) - asked_bytes;
        if (pid && (found || was_there) && *bytes >= least && *bytes <= most) return true;
        /* Several processes start at once: ours has a context and nothing else, so it is among the least. */
        *bytes = (int64_t)least_fresh_bytes;
        if (!pid && process->context_count == 0 && least_fresh_bytes && *bytes >= least && *bytes <= most) return true;
    }
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
