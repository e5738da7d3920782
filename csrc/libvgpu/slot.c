/* Slots and the lock word: who holds bytes, who lives, who may write. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "region.h"
#include "share.h"
#include "step.h"
#include "syscalls.h"

#ifndef F_OFD_GETLK /* Linux 3.15; glibc 2.17's headers are older */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define GIVE_UP_NS     UINT64_C(100000000)
#define FIRST_JUDGE_NS UINT64_C(200000)
#define NEXT_JUDGE_NS  UINT64_C(2000000)
#define LEAST_LOOKS    50 /* after GIVE_UP_NS: some 5 ms of running */
#define SPINS          200

static struct flock slot_byte(uint32_t slot) {
    struct flock lock;
    memset(&lock, 0, sizeof lock); /* l_pid must be 0 for these locks */
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)(VGPU_SLOT_LOCK_OFFSET + slot);
    lock.l_len = 1;
    return lock;
}

/* The same file, opened anew: an open file description sees only others' locks. -1 if it can't be had (chroot, file
 * removed, no descriptors left): then nothing can be said about anybody, and everything stays charged. */
static int open_to_judge(const struct vgpu_member *member) {
    if (!member->shared) return -1;
    int fd = vgpu_open(member->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    struct stat status;
    if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_dev != member->device || status.st_ino != member->inode)) {
        vgpu_close(fd);
        return -1;
    }
    return fd;
}

static bool slot_is_unlocked(int fd, uint32_t slot) {
    struct flock lock = slot_byte(slot);
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

bool vgpu_slot_owner_is_dead(const struct vgpu_member *member, uint64_t token) {
    uint32_t slot = (uint32_t)token - 1;
    if (!member->shared || token == member->token) return false; /* a thread of this process */
    if (slot >= VGPU_MAX_SLOTS) return true;                     /* no token at all: somebody scribbled */
    /* The successor bumps the generation after he got the slot's lock, so another generation means a dead owner. */
    if (__atomic_load_n(&member->region->slots[slot].generation, __ATOMIC_ACQUIRE) != (uint32_t)(token >> 32))
        return true;
    int fd = open_to_judge(member);
    if (fd < 0) return false;
    bool dead = slot_is_unlocked(fd, slot);
    vgpu_close(fd);
    return dead;
}

void vgpu_region_recompute(struct vgpu_region *region) {
    uint64_t sums[VGPU_MAX_DEVICES] = {0};
    for (uint32_t i = 0; i < VGPU_MAX_SLOTS; i++) {
        const struct vgpu_region_slot *slot = &region->slots[i];
        if (!slot->state) continue;
        for (int device = 0; device < VGPU_MAX_DEVICES; device++)
            for (int kind = 0; kind < VGPU_KINDS; kind++)
                sums[device] += slot->used_bytes[device][kind];
    }
    for (int device = 0; device < VGPU_MAX_DEVICES; device++)
        __atomic_store_n(&region->devices[device].used_bytes, sums[device], __ATOMIC_RELAXED);
}

/* With the lock. What others have imported from the slot's dead owner is theirs from now on. */
static void empty_slot(struct vgpu_member *member, uint32_t index) {
    struct vgpu_region_slot *slot = &member->region->slots[index];
    vgpu_share_evict(member, index);
    VGPU_STEP("evicted");
    memset(slot->used_bytes, 0, sizeof slot->used_bytes);
    memset(slot->launches, 0, sizeof slot->launches);
    slot->state = 0;
}

static bool slot_holds(const struct vgpu_region_slot *slot, int device) {
    for (int i = device < 0 ? 0 : device; i < (device < 0 ? VGPU_MAX_DEVICES : device + 1); i++)
        for (int kind = 0; kind < VGPU_KINDS; kind++)
            if (__atomic_load_n(&slot->used_bytes[i][kind], __ATOMIC_RELAXED)) return true;
    return false;
}

/* Judging needs system calls and is done before the lock is taken; what was judged is told by its generation. */
bool vgpu_region_sweep(struct vgpu_member *member, int device) {
    struct vgpu_region *region = member->region;
    uint32_t dead[64], generations[64], found = 0;
    int kept_errno = errno, fd = open_to_judge(member);
    errno = kept_errno;
    if (fd < 0) return false;
    for (uint32_t i = 0; i < VGPU_MAX_SLOTS && found < 64; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        uint32_t generation = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
        if (i == member->slot || !slot->state || !slot_holds(slot, device) || !slot_is_unlocked(fd, i)) continue;
        dead[found] = i;
        generations[found++] = generation;
    }
    vgpu_close(fd);
    errno = kept_errno;
    VGPU_STEP("sweep-judged");
    if (found == 0 || vgpu_region_lock(member) != 0) return false;
    for (uint32_t i = 0; i < found; i++)
        if (region->slots[dead[i]].generation == generations[i]) empty_slot(member, dead[i]);
    VGPU_STEP("sweep-emptied");
    vgpu_region_recompute(region);
    region->header.changes++;
    vgpu_region_unlock(member);
    return true;
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int wait_for_lock(struct vgpu_member *member) {
    uint64_t *lock = &member->region->header.lock;
    uint64_t seen = 0, since_ns = 0, judge_ns = 0;
    unsigned looks = 0;
    for (unsigned round = 0;; round++) {
        uint64_t owner = __atomic_load_n(lock, __ATOMIC_RELAXED);
        if (owner == 0 &&
            __atomic_compare_exchange_n(lock, &owner, member->token, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 0;
        if (round < SPINS) {
            pause_cpu();
            continue;
        }
        uint64_t now_ns = vgpu_clock_ns(CLOCK_MONOTONIC);
        /* Another owner than before: there is progress. */
        if (owner != seen) {
            seen = owner;
            since_ns = now_ns;
            judge_ns = now_ns + FIRST_JUDGE_NS;
            looks = 0;
        }
        if (owner != 0 && now_ns >= judge_ns) {
            judge_ns = now_ns + NEXT_JUDGE_NS;
            if (vgpu_slot_owner_is_dead(member, owner) &&
                __atomic_compare_exchange_n(lock, &owner, member->token, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
                VGPU_STEP("takeover-owned");
                vgpu_region_recompute(member->region);
                member->region->header.changes++;
                return 0;
            }
        }
        /* Looks are counted too: a container whose processor time is rationed stands still as a whole, and then the
         * owner isn't to blame. */
        bool ours = owner == member->token; /* a thread that has no processor: threads aren't stopped one by one */
        if (now_ns - since_ns > (ours ? 10 * GIVE_UP_NS : GIVE_UP_NS) && ++looks > (ours ? 40 : 1) * LEAST_LOOKS)
            return -EBUSY;
        if (round < SPINS + 20) {
            sched_yield();
        } else {
            vgpu_nap(50000);
        }
    }
}

int vgpu_region_lock_wait(struct vgpu_member *member) {
    int kept_errno = errno, result = wait_for_lock(member);
    errno = kept_errno;
    return result;
}

/* Field 22 of /proc/self/stat; the command in field 2 may hold blanks and brackets, so count from the last one. */
static uint64_t own_start_time(void) {
    char text[1024];
    int fd = vgpu_open("/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    ssize_t length = vgpu_read(fd, text, sizeof text - 1);
    vgpu_close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    char *field = strrchr(text, ')');
    for (int number = 2; field && number < 22; number++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

static uint64_t own_pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* The slot's lock first: it makes the slot ours among the living and so gives the token that the region's lock needs.
 */
static bool take_slot_lock(struct vgpu_member *member, int fd, uint32_t index) {
    struct flock lock = slot_byte(index);
    if (member->shared && fcntl(fd, F_OFD_SETLK, &lock) != 0) return false;
    struct vgpu_region_slot *slot = &member->region->slots[index];
    VGPU_STEP("claim-locked");
    uint32_t generation = slot->generation + 1;
    __atomic_store_n(&slot->generation, generation, __ATOMIC_RELEASE);
    member->slot = index;
    member->token = vgpu_slot_token(index, generation);
    return true;
}

int vgpu_slot_claim(struct vgpu_member *member, int fd, const char **why) {
    struct vgpu_region *region = member->region;
    bool found = false;
    /* Free slots first, then those whose owner may have died. Each process begins elsewhere: hundreds that start at
     * once would otherwise all try the same ones. */
    uint32_t first = (uint32_t)getpid() % VGPU_MAX_SLOTS;
    errno = 0;
    for (uint32_t pass = 0; pass < 2 && !found; pass++)
        for (uint32_t i = 0; i < VGPU_MAX_SLOTS && !found; i++) {
            uint32_t index = (first + i) % VGPU_MAX_SLOTS;
            if (__atomic_load_n(&region->slots[index].state, __ATOMIC_RELAXED) == pass)
                found = take_slot_lock(member, fd, index);
        }
    if (!found && errno && errno != EAGAIN && errno != EACCES) {
        *why = "the region's file can't be locked here"; /* a kernel before 3.15, a seccomp filter */
        return -errno;
    }
    if (!found) {
        *why = "the region is full: 1024 processes of this container use the GPU";
        return -EUSERS;
    }
    uint64_t namespace_inode = own_pid_namespace(), start_time = own_start_time();
    if (vgpu_region_lock(member) != 0) {
        *why = "a stopped process holds the region's lock";
        return -EBUSY;
    }
    struct vgpu_region_slot *slot = &region->slots[member->slot];
    bool had_bytes = slot->state && slot_holds(slot, -1);
    empty_slot(member, member->slot);
    VGPU_STEP("claim-emptied");
    if (had_bytes) {
        vgpu_region_recompute(region);
        region->header.changes++;
    }
    slot->pid = (int32_t)getpid();
    slot->pid_namespace = namespace_inode;
    slot->start_time_ticks = start_time;
    slot->claimed_unix_ns = vgpu_clock_ns(CLOCK_REALTIME);
    VGPU_STEP("claim-filled");
    __atomic_store_n(&slot->state, 1, __ATOMIC_RELEASE);
    vgpu_region_unlock(member);
    return 0;
}
