#include "measure.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture.h"
#include "charge.h"
#include "clock.h"
#include "context.h"
#include "hooks.h"
#include "pool.h"

#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC) /* inode of the host's own pid namespace, fixed in the kernel */
#define MOST_CHALLENGES     3                    /* that end without an answer */
#define MOST_LOOKS          8                    /* at the card, until ledger and card are of one moment */

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

/* Keeps who is on the card, and with how much, for a comparison with later. */
static void remember(struct vgpu_process *process, unsigned int count) {
    bool fits = make_room(&process->earlier, count * sizeof(nvmlProcessInfo_t));
    process->earlier_count = fits ? count : 0;
    if (fits && count) memcpy(process->earlier.memory, process->running.memory, count * sizeof(nvmlProcessInfo_t));
}

/* `place` is where it stands now, and probably stood. */
static const nvmlProcessInfo_t *find_earlier(const struct vgpu_process *process, uint32_t pid, unsigned int place) {
    const nvmlProcessInfo_t *earlier = process->earlier.memory;
    if (place < process->earlier_count && earlier[place].pid == pid) return &earlier[place];
    for (unsigned int i = 0; i < process->earlier_count; i++)
        if (earlier[i].pid == pid) return &earlier[i];
    return NULL;
}

/* Which of them is this process? NVML knows processes by the host's numbers. On the host itself that is ours. Elsewhere
 * it is the one that appeared with our first context; of several, the challenge below tells. */
static void find_own(struct vgpu_process *process, struct vgpu_measure *measure, const struct vgpu_measure *before,
                     unsigned int count) {
    const nvmlProcessInfo_t *running = process->running.memory;
    uint32_t appeared = 0;
    if (!measure->first_context) return;
    if (!before) {
        if (in_first_namespace()) process->host_pid = (uint32_t)getpid();
        remember(process, count);
        return;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (find_earlier(process, running[i].pid, i)) continue;
        appeared = running[i].pid;
        if (measure->fresh++ == 0 || running[i].usedGpuMemory < measure->least_fresh_bytes)
            measure->least_fresh_bytes = running[i].usedGpuMemory;
    }
    if (measure->fresh == 1) process->host_pid = appeared;
    if (measure->fresh > 1) process->challenges = MOST_CHALLENGES;
}

/* Whose figure has grown by just so much since it was remembered? 0: nobody's, or several. */
static uint32_t grown_by(const struct vgpu_process *process, unsigned int count, uint64_t bytes) {
    const nvmlProcessInfo_t *running = process->running.memory;
    uint32_t pid = 0;
    for (unsigned int i = 0; i < count; i++) {
        const nvmlProcessInfo_t *earlier = find_earlier(process, running[i].pid, i);
        if (!earlier || running[i].usedGpuMemory - earlier->usedGpuMemory != bytes) continue;
        if (pid) return 0;
        pid = running[i].pid;
    }
    return pid;
}

static uint32_t challenge_once(struct vgpu_process *process, nvmlDevice_t handle, int device, uint64_t bytes) {
    VGPU_CAPTURE_RELAXED;
    unsigned int count;
    CUdeviceptr pointer;
    uint32_t pid = 0;
    if (!list_processes(process, handle, &count)) return 0;
    remember(process, count);
    if (vgpu_charge_quietly(process, device, VGPU_KIND_BUFFER, bytes) != CUDA_SUCCESS) return 0;
    if (real_cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS) {
        if (list_processes(process, handle, &count)) pid = grown_by(process, count, bytes);
        real_cuMemFree_v2(pointer);
    }
    vgpu_uncharge(process, device, VGPU_KIND_BUFFER, bytes);
    return pid;
}

/* With what is owed, which has happened on the card already. */
static uint64_t charged_bytes(const struct vgpu_process *process, int device) {
    const struct vgpu_member *member = process->member;
    const uint64_t *used_bytes = member->region->slots[member->slot].used_bytes[device];
    uint64_t sum = 0;
    for (int kind = 0; kind < VGPU_KINDS; kind++)
        sum += used_bytes[kind] - (uint64_t)__atomic_load_n(&process->debt_bytes[device][kind], __ATOMIC_RELAXED);
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

/* Where several processes began at once: asks the card for some memory, sees who has that much more, and gives it back.
 * Twice, and nobody can know beforehand when and how much, so none is taken for this one that isn't. In `context`, or
 * the current one where that is NULL. */
static bool challenge(struct vgpu_process *process, int device, CUcontext context) {
    int kept_errno = errno;
    nvmlDevice_t handle;
    uint32_t last = 0;
    if (process->host_pid || process->challenges == 0) return false;
    if (context && real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return false;
    process->challenges--;
    vgpu_gate_close(&process->gate);
    bool known = find_device(process, device, &handle);
    for (int attempt = 0; known && !process->host_pid && attempt < 8; attempt++) {
        uint64_t blocks = 1 + (vgpu_clock_ns(CLOCK_MONOTONIC) * UINT64_C(0x9E3779B97F4A7C15) >> 60);
        uint32_t pid = challenge_once(process, handle, device, blocks * VGPU_BLOCK_BYTES);
        if (pid && pid == last) process->host_pid = pid;
        last = pid;
    }
    vgpu_gate_open(&process->gate);
    if (context) real_cuCtxPopCurrent_v2(&context);
    errno = kept_errno;
    return process->host_pid != 0;
}

/* By NVML, or where there is none by the driver, which tells only of the device that is current. */
static bool free_memory(const struct vgpu_process *process, int device, nvmlDevice_t handle, uint64_t *bytes) {
    nvmlMemory_t memory;
    CUdevice ordinal = -1;
    size_t free = 0, total;
    int integrated = 0;
    if (handle) {
        if (real_nvmlDeviceGetMemoryInfo(handle, &memory) != NVML_SUCCESS) return false;
        *bytes = memory.free;
        return true;
    }
    if (real_cuCtxGetDevice(&ordinal) != CUDA_SUCCESS || ordinal != vgpu_device_ordinal(process, device) ||
        real_cuDeviceGetAttribute(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, ordinal) != CUDA_SUCCESS ||
        integrated || /* its memory is the machine's, where much comes and goes */
        real_cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS)
        return false;
    *bytes = free;
    return true;
}

/* While no request is in flight, the ledger says of each what the card does. What pools gave back by themselves is
 * entered first; where another thread that waits for the card let them do so just then, the card is asked again. */
static void take_stock(struct vgpu_process *process, int device, struct vgpu_measure *measure,
                       const struct vgpu_measure *before) {
    int kept_errno = errno;
    *measure = (struct vgpu_measure){.device = device, .first_context = process->context_count == 0};
    nvmlDevice_t handle = NULL;
    vgpu_gate_close(&process->gate);
    if (!find_device(process, device, &handle)) handle = NULL;
    vgpu_pools_settle(process);
    for (int attempt = 0; attempt < MOST_LOOKS; attempt++) {
        measure->charged_bytes = charged_bytes(process, device);
        measure->fresh = 0;
        if (handle) look_for_own(process, handle, measure, before);
        measure->has_free = free_memory(process, device, handle, &measure->free_bytes);
        vgpu_pools_settle(process);
        if (measure->charged_bytes == charged_bytes(process, device)) break;
    }
    vgpu_gate_open(&process->gate);
    errno = kept_errno;
}

void vgpu_measure_start(struct vgpu_process *process, int device, struct vgpu_measure *before) {
    challenge(process, device, NULL);
    take_stock(process, device, before, NULL);
}

/* false if the card can't tell. */
static bool change(struct vgpu_process *process, const struct vgpu_measure *before, CUcontext context, int64_t least,
                   int64_t most, int64_t *bytes) {
    struct vgpu_measure after;
    take_stock(process, before->device, &after, before);
    if (after.fresh > 1 && challenge(process, before->device, context))
        take_stock(process, before->device, &after, before);
    /* What this process asked for meanwhile, in other threads, was charged already. */
    int64_t asked_bytes = (int64_t)(after.charged_bytes - before->charged_bytes);
    if (before->has_own && after.has_own && (before->listed || after.listed)) {
        *bytes = (int64_t)(after.own_bytes - before->own_bytes) - asked_bytes;
        if (*bytes >= least && *bytes <= most) return true;
    }
    process->charged_ahead = true; /* what follows is at best near */
    /* Ours has a context and nothing else, so it is among the least of those that appeared. */
    *bytes = (int64_t)after.least_fresh_bytes;
    if (*bytes > 0 && *bytes >= least && *bytes <= most) return true;
    if (after.has_free && before->has_free) {
        *bytes = (int64_t)(before->free_bytes - after.free_bytes) - asked_bytes;
        if (*bytes >= least && *bytes <= most) return true;
    }
    return false;
}

uint64_t vgpu_measure_context(struct vgpu_process *process, const struct vgpu_measure *before, CUcontext context,
                              uint64_t least_bytes, uint64_t most_bytes, uint64_t otherwise_bytes) {
    int64_t bytes;
    bool told = change(process, before, context, (int64_t)least_bytes, (int64_t)most_bytes, &bytes);
    return told ? (uint64_t)bytes : otherwise_bytes;
}

int64_t vgpu_measure_change(struct vgpu_process *process, const struct vgpu_measure *before, uint64_t otherwise_bytes) {
    int64_t bytes, most = (int64_t)(UINT64_C(1) << 40);
    return change(process, before, NULL, -most, most, &bytes) ? bytes : (int64_t)otherwise_bytes;
}

/* By how much more NVML says that this process holds than is charged to it. false if that can't be told. With
 * birth_lock and the gate closed. */
static bool compare(struct vgpu_process *process, int device, int64_t *drift_bytes) {
    struct vgpu_measure now = {.device = device};
    nvmlDevice_t handle;
    if (!find_device(process, device, &handle)) return false;
    look_for_own(process, handle, &now, NULL);
    vgpu_pools_settle(process); /* one may have given something back just before the card was asked */
    *drift_bytes = (int64_t)(now.own_bytes - charged_bytes(process, device));
    return now.has_own && now.listed;
}

uint64_t vgpu_measure_surplus(struct vgpu_process *process, int device) {
    int64_t drift;
    if (!vgpu_measure_can_tell(process) || process->in_debt || process->stale) return 0;
    int kept_errno = errno;
    bool told = compare(process, device, &drift);
    errno = kept_errno;
    return told && drift < 0 ? (uint64_t)-drift : 0;
}

/* Another copy of this library in this process, in a namespace of dlmopen(), has a slot of its own; NVML's figure is of
 * both. A slot of this number may also be left over: from what this process was before exec, or from a dead one. */
static bool is_alone(const struct vgpu_member *member) {
    const struct vgpu_region_slot *slots = member->region->slots, *own = &slots[member->slot];
    for (uint32_t i = 0; i < VGPU_MAX_SLOTS; i++)
        if (i != member->slot && __atomic_load_n(&slots[i].state, __ATOMIC_RELAXED) && slots[i].pid == own->pid &&
            slots[i].pid_namespace == own->pid_namespace &&
            !vgpu_slot_owner_is_dead(member, vgpu_slot_token(i, slots[i].generation)))
            return false;
    return true;
}

/* The smaller of two differences of the same sign, else 0. */
static int64_t lasting(int64_t one, int64_t other) {
    if (one > 0 && other > 0) return one < other ? one : other;
    if (one < 0 && other < 0) return one > other ? one : other;
    return 0;
}

/* With birth_lock and the gate closed. */
static void reconcile(struct vgpu_process *process, int device) {
    int64_t before = process->drift_bytes[device], drift;
    process->drift_bytes[device] = 0;
    if (!vgpu_context_any(process, device) || !compare(process, device, &drift)) return;
    int64_t change = lasting(drift, before);
    uint64_t *taken = &process->module_bytes[device];
    if (change > 0) {
        vgpu_charge_anyway(process, device, VGPU_KIND_MODULE, (uint64_t)change);
        *taken += (uint64_t)change;
    } else if (change < 0 && !process->charged_ahead && process->small[device].arrays == 0) {
        uint64_t less = (uint64_t)-change < *taken ? (uint64_t)-change : *taken;
        vgpu_uncharge(process, device, VGPU_KIND_MODULE, less);
        *taken -= less;
    }
    process->drift_bytes[device] = drift - change;
}

void vgpu_measure_reconcile(struct vgpu_process *process) {
    int kept_errno = errno;
    if (!process->host_pid || process->shares || process->in_debt || process->stale || !is_alone(process->member) ||
        !vgpu_private_trylock(&process->birth_lock))
        return;
    if (vgpu_gate_try_close(&process->gate)) {
        for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
            reconcile(process, process->index_of[ordinal]);
        vgpu_gate_open(&process->gate);
    }
    vgpu_private_unlock(&process->birth_lock);
    errno = kept_errno;
}
