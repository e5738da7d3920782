#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "charge.h"
#include "devices.h"
#include "hooks.h"
#include "measure.h"
#include "message.h"
#include "vgpu/paths.h"

#ifndef MADV_WIPEONFORK /* Linux 4.14 */
#define MADV_WIPEONFORK 18
#endif
#define TICK_NS UINT64_C(1000000000)

struct vgpu_process *vgpu_process_page;

static struct vgpu_process *page(void) {
    struct vgpu_process *process = __atomic_load_n(&vgpu_process_page, __ATOMIC_ACQUIRE);
    if (process) return process;
    void *memory =
        mmap(NULL, sizeof *process, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        static struct vgpu_process none = {.state = VGPU_REFUSED};
        return &none;
    }
    process = memory;
    if (madvise(memory, sizeof *process, MADV_WIPEONFORK) != 0) {
        process->old_kernel = true;
        process->pid = getpid();
    }
    struct vgpu_process *other = NULL;
    if (__atomic_compare_exchange_n(&vgpu_process_page, &other, process, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return process;
    munmap(memory, sizeof *process);
    return other;
}

/* By hand: the file that the user names, else one in a directory of his own that nobody else can write to. */
static int path_by_hand(char *path, size_t room, struct vgpu_region_rules *rules, const char **why) {
    const char *named = secure_getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"); /* a file that is created */
    struct stat status;
    if (named && named[0]) {
        *why = "CUDA_DEVICE_MEMORY_SHARED_CACHE must be an absolute path shorter than 256 bytes";
        return named[0] == '/' && (size_t)snprintf(path, room, "%s", named) < room ? 0 : -EINVAL;
    }
    char directory[64];
    snprintf(directory, sizeof directory, "/tmp/vgpu-%u", (unsigned)geteuid());
    *why = "can't use the directory /tmp/vgpu-<uid>";
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) return -errno;
    *why = "/tmp/vgpu-<uid> isn't a directory that belongs to this user alone";
    if (lstat(directory, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
        (status.st_mode & 077) != 0)
        return -EPERM;
    rules->private_to_user = true;
    snprintf(path, room, "%s/" VGPU_REGION_FILE, directory);
    return 0;
}

static void read_quota(struct vgpu_process *process) {
    for (int attempt = 0; attempt < 10; attempt++) { /* a projected volume is switched as a whole, between two reads */
        process->quota_signature = vgpu_quota_signature();
        vgpu_quota_read(&process->texts);
        if (process->quota_signature == vgpu_quota_signature()) return;
    }
}

static void refuse(struct vgpu_process *process, const char *what, const char *why) {
    vgpu_message(VGPU_ERROR, "the GPU is refused to this process: %s%s%s", what, *what ? ": " : "", why);
    __atomic_store_n(&process->state, VGPU_REFUSED, __ATOMIC_RELEASE);
}

static bool is_share(const char *percent) {
    return percent && percent[0] && strcmp(percent, "0") != 0 && strcmp(percent, "100") != 0;
}

static void warn_about_unenforced(void) {
    bool asked = is_share(getenv("CUDA_DEVICE_SM_LIMIT"));
    for (int index = 0; index < VGPU_MAX_DEVICES && !asked; index++) {
        char name[40];
        snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%d", index);
        asked = is_share(getenv(name));
    }
    if (asked) vgpu_message(VGPU_WARNING, "CUDA_DEVICE_SM_LIMIT is read but not enforced: only memory is limited");
}

static void join(struct vgpu_process *process) {
    struct vgpu_member *member = &process->first_member;
    struct vgpu_region_rules rules = {false, false};
    char path[VGPU_PATH_BYTES] = VGPU_REGION_DIR "/" VGPU_REGION_FILE;
    const char *why = "";
    read_quota(process);
    vgpu_quota_read_environment(&process->texts);
    int error = 0;
    if (process->texts.injected)
        rules.must_be_mount = true;
    else
        error = path_by_hand(path, sizeof path, &rules, &why);
    if (error == 0) error = vgpu_region_join(member, path, rules, &why);
    if (error != 0 && process->texts.injected) {
        char reason[300];
        snprintf(reason, sizeof reason, "%s (%s)", why, strerror(-error));
        refuse(process, path, reason);
        return;
    }
    if (error != 0) {
        vgpu_message(VGPU_WARNING, "%s: %s (%s): this process counts for itself alone", path, why, strerror(-error));
        if (vgpu_region_join_private(member) != 0) {
            refuse(process, "", "no memory for a ledger");
            return;
        }
    }
    process->member = member;
    warn_about_unenforced();
    vgpu_devices_from_nvml(process);
    why = vgpu_devices_decide(process);
    if (why) {
        refuse(process, "", why);
        return;
    }
    process->tick_ns = vgpu_clock_coarse_ns() + TICK_NS;
    __atomic_store_n(&process->state, VGPU_JOINED, __ATOMIC_RELEASE);
}

static void join_with_cuda(struct vgpu_process *process) {
    CUresult result = vgpu_devices_from_cuda(process);
    if (result == CUDA_ERROR_NOT_PERMITTED) {
        refuse(process, "", "more devices than the region has places for");
        return;
    }
    if (result != CUDA_SUCCESS) return;
    const char *why = vgpu_devices_decide(process);
    if (why)
        refuse(process, "", why);
    else
        __atomic_store_n(&process->state, VGPU_READY, __ATOMIC_RELEASE);
}

/* Only for kernels that can't wipe memory for a forked child: it still sees its parent's state here. */
static void forget_parent(struct vgpu_process *process) {
    int pid = getpid();
    if (!process->old_kernel || process->pid == pid) return;
    memset(process, 0, sizeof *process);
    process->old_kernel = true;
    process->pid = pid;
}

struct vgpu_process *vgpu_process_attach(bool with_cuda) {
    int kept_errno = errno, count = 0;
    struct vgpu_process *process = page();
    forget_parent(process);
    uint32_t state = __atomic_load_n(&process->state, __ATOMIC_ACQUIRE);
    if (state == VGPU_REFUSED || state == VGPU_READY || (state == VGPU_JOINED && !with_cuda)) return process;
    /* Before cuInit, and in a forked child, the driver refuses by itself: no slot is taken for those. */
    if (with_cuda && real_cuDeviceGetCount(&count) != CUDA_SUCCESS) return process;
    vgpu_private_lock(&process->attach_lock);
    if (process->state == VGPU_NEW) join(process);
    if (with_cuda && process->state == VGPU_JOINED) join_with_cuda(process);
    vgpu_private_unlock(&process->attach_lock);
    errno = kept_errno;
    return process;
}

void vgpu_process_retry(struct vgpu_process *process) {
    vgpu_private_lock(&process->attach_lock);
    if (process->state == VGPU_REFUSED) {
        struct vgpu_member *member = &process->first_member;
        vgpu_region_leave(member);
        process->member = NULL;
        __atomic_store_n(&process->state, VGPU_NEW, __ATOMIC_RELEASE);
    }
    vgpu_private_unlock(&process->attach_lock);
}

static void follow_quota(struct vgpu_process *process) {
    uint64_t before = process->quota_signature;
    if (vgpu_quota_signature() == before) return;
    read_quota(process);
    const char *why = vgpu_devices_decide(process);
    if (!why) return;
    /* What was believed stays: a process that was granted its share keeps it, a new one is refused. Perhaps it only
     * couldn't be read (no descriptor was left): it is looked at again with the next tick. */
    process->quota_signature = 0;
    if (before != 0)
        vgpu_message(VGPU_WARNING, "the quota changed to something unusable (%s): the last one holds", why);
}

/* A host callback may call NVML, but not CUDA. */
void vgpu_process_tick(struct vgpu_process *process, bool with_cuda) {
    int kept_errno = errno;
    uint64_t now_ns = vgpu_clock_coarse_ns(), due_ns = __atomic_load_n(&process->tick_ns, __ATOMIC_RELAXED);
    if (process->state == VGPU_REFUSED || !process->member || now_ns < due_ns ||
        !__atomic_compare_exchange_n(&process->tick_ns, &due_ns, now_ns + TICK_NS, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    vgpu_private_lock(&process->attach_lock);
    if (process->stale || !vgpu_region_is_current(process->member)) vgpu_charge_follow_region(process);
    if (process->texts.injected) follow_quota(process);
    for (int device = 0; device < VGPU_MAX_DEVICES; device++)
        vgpu_used(process, device); /* takes back what the dead hold, for those who only look */
    vgpu_private_unlock(&process->attach_lock);
    if (with_cuda && process->state == VGPU_READY) vgpu_measure_reconcile(process);
    errno = kept_errno;
}
