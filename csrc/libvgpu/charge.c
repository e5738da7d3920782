#include "charge.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "message.h"
#include "share.h"
#include "step.h"

#define LEAST_GAP_NS UINT64_C(100000)
#define MOST_GAP_NS  UINT64_C(1000000)

static uint64_t *own_bytes(const struct vgpu_member *member, int device, enum vgpu_kind kind) {
    return &member->region->slots[member->slot].used_bytes[device][kind];
}

static uint64_t own_total(const struct vgpu_member *member, int device) {
    uint64_t total = 0;
    for (int kind = 0; kind < VGPU_KINDS; kind++)
        total += __atomic_load_n(own_bytes(member, device, (enum vgpu_kind)kind), __ATOMIC_ACQUIRE);
    return total;
}

/* With the lock. Never below zero: the file can be scribbled on by the tenant. */
static void subtract(struct vgpu_member *member, int device, enum vgpu_kind kind, uint64_t bytes) {
    uint64_t *own = own_bytes(member, device, kind);
    uint64_t *total = &member->region->devices[device].used_bytes;
    if (bytes > *own) bytes = *own;
    __atomic_store_n(own, *own - bytes, __ATOMIC_RELAXED);
    VGPU_STEP("uncharge-slot");
    __atomic_store_n(total, *total > bytes ? *total - bytes : 0, __ATOMIC_RELAXED);
}

static void add(struct vgpu_member *member, int device, enum vgpu_kind kind, uint64_t bytes) {
    struct vgpu_region_device *card = &member->region->devices[device];
    uint64_t *own = own_bytes(member, device, kind);
    uint64_t used = card->used_bytes + bytes;
    VGPU_STEP("charge-locked");
    __atomic_store_n(own, *own + bytes, __ATOMIC_RELAXED);
    VGPU_STEP("charge-slot");
    __atomic_store_n(&card->used_bytes, used, __ATOMIC_RELAXED);
    VGPU_STEP("charge-total");
    if (used > card->peak_used_bytes) card->peak_used_bytes = used;
}

static void pay_debt(struct vgpu_process *process, struct vgpu_member *member) {
    __atomic_store_n(&process->in_debt, 0, __ATOMIC_RELAXED);
    for (int device = 0; device < VGPU_MAX_DEVICES; device++)
        for (int kind = 0; kind < VGPU_KINDS; kind++) {
            int64_t bytes = __atomic_exchange_n(&process->debt_bytes[device][kind], 0, __ATOMIC_RELAXED);
            if (bytes > 0)
                subtract(member, device, (enum vgpu_kind)kind, (uint64_t)bytes);
            else if (bytes < 0)
                add(member, device, (enum vgpu_kind)kind, (uint64_t)-bytes);
        }
}

/* What has happened on the card has happened, lock or not: it is entered when the lock can be had. */
static void owe(struct vgpu_process *process, int device, enum vgpu_kind kind, int64_t bytes) {
    __atomic_fetch_add(&process->debt_bytes[device][kind], bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&process->in_debt, 1, __ATOMIC_RELEASE);
}

/* The lock of the region that is current once it is ours: it may have been replaced while waiting. NULL: not to be had.
 */
static inline struct vgpu_member *lock_current(struct vgpu_process *process) {
    for (;;) {
        struct vgpu_member *member = __atomic_load_n(&process->member, __ATOMIC_ACQUIRE);
        if (vgpu_region_lock(member) != 0) return NULL;
        if (__builtin_expect(member == __atomic_load_n(&process->member, __ATOMIC_RELAXED), 1)) {
            if (__builtin_expect(__atomic_load_n(&process->in_debt, __ATOMIC_RELAXED), 0)) pay_debt(process, member);
            return member;
        }
        vgpu_region_unlock(member);
    }
}

static void count_refusal(struct vgpu_region_device *card, uint64_t bytes) {
    uint64_t largest = __atomic_load_n(&card->refused_largest_bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&card->refusals, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&card->refused_last_unix_ns, vgpu_clock_ns(CLOCK_REALTIME_COARSE), __ATOMIC_RELAXED);
    while (bytes > largest && !__atomic_compare_exchange_n(&card->refused_largest_bytes, &largest, bytes, true,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

static uint64_t add_saturated(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* A look costs system calls for each slot with bytes, so a process that is refused in a loop looks again only after
 * eight times what the last look took, at least 100 us and at most 1 ms: less than a killed process needs to die. */
static bool look_is_due(struct vgpu_process *process, uint64_t *now_ns) {
    *now_ns = vgpu_clock_ns(CLOCK_MONOTONIC);
    return *now_ns >= __atomic_load_n(&process->look_ns, __ATOMIC_RELAXED);
}

static bool look(struct vgpu_process *process, int device, uint64_t now_ns) {
    bool found = vgpu_region_sweep(__atomic_load_n(&process->member, __ATOMIC_ACQUIRE), device);
    uint64_t then_ns = vgpu_clock_ns(CLOCK_MONOTONIC);
    uint64_t gap_ns = (then_ns - now_ns) * 8;
    if (gap_ns < LEAST_GAP_NS) gap_ns = LEAST_GAP_NS;
    if (gap_ns > MOST_GAP_NS) gap_ns = MOST_GAP_NS;
    __atomic_store_n(&process->look_ns, found ? 0 : then_ns + gap_ns, __ATOMIC_RELAXED);
    return found;
}

static bool fits(uint64_t used, uint64_t limit, uint64_t bytes) {
    return used <= limit && bytes <= limit - used;
}

/* Is it plain without the lock that the request doesn't fit? Programs that ask in a loop for what they can't have would
 * otherwise be in everybody's way. Only as long as nobody has the lock: what a dead owner left half done is set right
 * by the next one who takes it. */
static bool is_too_much(struct vgpu_process *process, int device, uint64_t bytes, uint64_t *used, bool *holds_all) {
    const struct vgpu_member *member = __atomic_load_n(&process->member, __ATOMIC_ACQUIRE);
    const uint64_t *lock = &member->region->header.lock, *total = &member->region->devices[device].used_bytes;
    uint64_t limit = __atomic_load_n(&process->limit_bytes[device], __ATOMIC_RELAXED);
    if (__builtin_expect(fits(__atomic_load_n(total, __ATOMIC_RELAXED), limit, bytes), 1) || process->stale ||
        __atomic_load_n(&process->in_debt, __ATOMIC_RELAXED) || __atomic_load_n(lock, __ATOMIC_ACQUIRE) != 0)
        return false;
    /* Acquired, so that the lock is looked at again after all of it. */
    *used = __atomic_load_n(total, __ATOMIC_ACQUIRE);
    *holds_all = !member->shared || *used == own_total(member, device);
    return !fits(*used, limit, bytes) && __atomic_load_n(lock, __ATOMIC_RELAXED) == 0;
}

static CUresult refuse(struct vgpu_process *process, const struct vgpu_member *member, int device, uint64_t used,
                       uint64_t bytes, bool loudly) {
    if (!loudly) return CUDA_ERROR_OUT_OF_MEMORY;
    count_refusal(&member->region->devices[device], bytes);
    if (process->stale)
        vgpu_message(VGPU_ERROR, "%s is gone: request refused", member->path);
    else
        vgpu_message_refused(device, add_saturated(used, bytes),
                             __atomic_load_n(&process->limit_bytes[device], __ATOMIC_RELAXED));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult charge(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes, bool loudly) {
    bool looked = false;
    if (__builtin_expect((unsigned)device >= VGPU_MAX_DEVICES, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
    for (;;) {
        bool holds_all;
        uint64_t used, now_ns;
        if (__builtin_expect(is_too_much(process, device, bytes, &used, &holds_all), 0)) {
            if (holds_all || looked || !look_is_due(process, &now_ns))
                return refuse(process, __atomic_load_n(&process->member, __ATOMIC_ACQUIRE), device, used, bytes,
                              loudly);
            looked = true;
            look(process, device, now_ns);
            continue;
        }
        struct vgpu_member *member = lock_current(process);
        if (!member) {
            vgpu_message(VGPU_ERROR, "a stopped process holds the region's lock: request refused");
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        struct vgpu_region_device *card = &member->region->devices[device];
        uint64_t limit = __atomic_load_n(&process->limit_bytes[device], __ATOMIC_RELAXED);
        used = card->used_bytes;
        if (__builtin_expect(fits(used, limit, bytes) && !process->stale, 1)) {
            add(member, device, kind, bytes);
            vgpu_region_unlock(member);
            return CUDA_SUCCESS;
        }
        if (!looked && member->shared && used != own_total(member, device) && look_is_due(process, &now_ns)) {
            vgpu_region_unlock(member);
            looked = true;
            look(process, device, now_ns);
            continue;
        }
        vgpu_region_unlock(member);
        return refuse(process, member, device, used, bytes, loudly);
    }
}

CUresult vgpu_charge(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes) {
    return charge(process, device, kind, bytes, true);
}

CUresult vgpu_charge_quietly(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes) {
    return charge(process, device, kind, bytes, false);
}

void vgpu_charge_anyway(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes) {
    if ((unsigned)device >= VGPU_MAX_DEVICES || bytes == 0) return;
    struct vgpu_member *member = lock_current(process);
    if (!member) {
        owe(process, device, kind, -(int64_t)bytes);
        return;
    }
    add(member, device, kind, bytes);
    vgpu_region_unlock(member);
}

void vgpu_uncharge(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t bytes) {
    if ((unsigned)device >= VGPU_MAX_DEVICES || bytes == 0) return;
    struct vgpu_member *member = lock_current(process);
    if (!member) {
        owe(process, device, kind, (int64_t)bytes);
        return;
    }
    subtract(member, device, kind, bytes);
    VGPU_STEP("uncharge-done");
    vgpu_region_unlock(member);
}

CUresult vgpu_refuse(struct vgpu_process *process, int device, uint64_t bytes) {
    if ((unsigned)device >= VGPU_MAX_DEVICES) return CUDA_ERROR_OUT_OF_MEMORY;
    struct vgpu_member *member = lock_current(process);
    if (member) {
        uint64_t used = member->region->devices[device].used_bytes;
        count_refusal(&member->region->devices[device], bytes);
        vgpu_region_unlock(member);
        vgpu_message_refused(device, add_saturated(used, bytes), process->limit_bytes[device]);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_settle(struct vgpu_process *process, int device, enum vgpu_kind kind, uint64_t reserved_bytes,
                     uint64_t actual_bytes) {
    CUresult result = CUDA_SUCCESS;
    if (actual_bytes < reserved_bytes) {
        vgpu_uncharge(process, device, kind, reserved_bytes - actual_bytes);
    } else if (actual_bytes > reserved_bytes) {
        result = vgpu_charge(process, device, kind, actual_bytes - reserved_bytes);
        if (result != CUDA_SUCCESS) vgpu_uncharge(process, device, kind, reserved_bytes);
    }
    return result;
}

uint64_t vgpu_used(struct vgpu_process *process, int device) {
    struct vgpu_member *member = __atomic_load_n(&process->member, __ATOMIC_ACQUIRE);
    uint64_t used = __atomic_load_n(&member->region->devices[device].used_bytes, __ATOMIC_RELAXED);
    uint64_t now_ns;
    if (member->shared && used != own_total(member, device) && look_is_due(process, &now_ns) &&
        look(process, device, now_ns))
        used = __atomic_load_n(&member->region->devices[device].used_bytes, __ATOMIC_RELAXED);
    return used;
}

static void abandon(struct vgpu_member *member) {
    vgpu_region_leave(member);
    munmap(member, sizeof *member);
}

/* The old member stays as it is, since another thread may be about to lock it.
 * All threads of this process need the old region's lock to change bytes, so while we hold it they can't, and once they
 * get it they see that another member is current. */
void vgpu_charge_follow_region(struct vgpu_process *process) {
    struct vgpu_member *old = process->member;
    struct vgpu_member *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        process->stale = true;
        return;
    }
    madvise(fresh, sizeof *fresh, MADV_DONTFORK);
    const char *why = "";
    if (vgpu_region_join(fresh, old->path, old->rules, &why) != 0) {
        munmap(fresh, sizeof *fresh);
        if (!process->stale)
            vgpu_message(VGPU_ERROR, "%s is gone (%s): nothing is granted until it is back", old->path, why);
        process->stale = true;
        return;
    }
    if (vgpu_region_lock(old) != 0) {
        abandon(fresh);
        process->stale = true;
        return;
    }
    if (__atomic_load_n(&process->in_debt, __ATOMIC_RELAXED)) pay_debt(process, old);
    if (vgpu_region_lock(fresh) == 0) {
        for (uint32_t i = 0; i < old->region->header.device_count && i < VGPU_MAX_DEVICES; i++) {
            struct vgpu_region_device *card = &fresh->region->devices[i];
            memcpy(card->uuid, old->region->devices[i].uuid, sizeof card->uuid);
            card->physical_bytes = old->region->devices[i].physical_bytes;
            card->limit_bytes = old->region->devices[i].limit_bytes;
            card->limit_source = old->region->devices[i].limit_source;
            card->unbelieved_bytes = old->region->devices[i].unbelieved_bytes;
            for (int kind = 0; kind < VGPU_KINDS; kind++)
                if (*own_bytes(old, (int)i, (enum vgpu_kind)kind))
                    add(fresh, (int)i, (enum vgpu_kind)kind, *own_bytes(old, (int)i, (enum vgpu_kind)kind));
        }
        if (fresh->region->header.device_count < old->region->header.device_count)
            fresh->region->header.device_count = old->region->header.device_count;
        vgpu_share_follow(old, fresh);
        __atomic_store_n(&process->member, fresh, __ATOMIC_RELEASE);
        process->stale = false;
        vgpu_region_unlock(fresh);
    } else {
        abandon(fresh);
        process->stale = true;
    }
    vgpu_region_unlock(old);
}
