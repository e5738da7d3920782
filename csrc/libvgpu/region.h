/* The region: the ledger that all processes of a container share (layout and who may write what: vgpu/region.h).
 *
 * Vocabulary
 *   member   this process as one of those that share a region: a mapping, a slot in it, a token
 *   token    slot index + 1 in the low half, the slot's generation in the high half; what the lock word holds
 *   judge    to find out whether a slot's owner lives, by the lock on the slot's byte that the kernel drops with him
 *   sweep    to take back what dead owners hold
 *
 * What always holds: used_bytes of a device is the sum over the slots in use whenever the lock is free. A process
 * killed between two stores leaves the lock word with his token; whoever finds that owner dead takes the lock over
 * and recomputes the sums, so no order of stores matters.
 */
#ifndef VGPU_LIBVGPU_REGION_H
#define VGPU_LIBVGPU_REGION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "vgpu/region.h"

#define VGPU_PATH_BYTES 256

/* How a region is opened; the difference between a container that was set up for us and use by hand. */
struct vgpu_region_rules {
    bool must_be_mount;   /* the directory must be a mount of its own (injected) */
    bool private_to_user; /* directory and file must belong to this user (by hand, default place) */
};

struct vgpu_shares;

struct vgpu_member {
    struct vgpu_region *region;
    struct vgpu_shares *shares; /* share.h; NULL: can't be had */
    uint64_t token;
    uint32_t slot;
    bool shared; /* false: a private ledger, nobody else to judge */
    dev_t device;
    ino_t inode;
    struct vgpu_region_rules rules;
    char path[VGPU_PATH_BYTES];
};

/* Opens or creates the region at `path`, maps it and claims a slot. 0, or -errno with `why` pointing to a sentence
 * about what is wrong: -ENOSPC (file system full), -EUSERS (every slot has a living owner), -EPROTO (another magic,
 * size or abi), -EPERM (not a regular file, wrong owner, not a mount), -EBUSY (lock held by a stopped process), or
 * what the system said. */
int vgpu_region_join(struct vgpu_member *member, const char *path, struct vgpu_region_rules rules, const char **why);

/* A ledger of this process alone, in memory that no child inherits. 0 or -ENOMEM. */
int vgpu_region_join_private(struct vgpu_member *member);

/* Unmaps; the kernel drops the slot's lock with the mapping. The slot's bytes stay for others to sweep. */
void vgpu_region_leave(struct vgpu_member *member);

/* Is the file at the path still the one that is mapped? */
bool vgpu_region_is_current(const struct vgpu_member *member);

/* Takes back the slots of dead owners that hold bytes on `device` (-1: any). Call without the lock; true if anything
 * was taken back. */
bool vgpu_region_sweep(struct vgpu_member *member, int device);

/* The waiting half of vgpu_region_lock(). */
int vgpu_region_lock_wait(struct vgpu_member *member);

/* 0, or -EBUSY: a living process has held the lock for 100 ms (stopped). A dead owner's lock is taken over. */
static inline int vgpu_region_lock(struct vgpu_member *member) {
    uint64_t unowned = 0;
    if (__builtin_expect(__atomic_compare_exchange_n(&member->region->header.lock, &unowned, member->token, false,
                                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED),
                         1))
        return 0;
    return vgpu_region_lock_wait(member);
}

static inline void vgpu_region_unlock(struct vgpu_member *member) {
    __atomic_store_n(&member->region->header.lock, 0, __ATOMIC_RELEASE);
}

/* Recomputes each device's used bytes from the slots. Call with the lock. */
void vgpu_region_recompute(struct vgpu_region *region);

/* Is something mounted at `path`? A directory that an image brought along isn't what was injected. */
bool vgpu_path_is_mount(const char *path);

/* Between region.c and slot.c. */
int vgpu_slot_claim(struct vgpu_member *member, int fd, const char **why);
bool vgpu_slot_owner_is_dead(const struct vgpu_member *member, uint64_t token);

/* The token of who holds a slot. */
static inline uint64_t vgpu_slot_token(uint32_t slot, uint32_t generation) {
    return (uint64_t)generation << 32 | (slot + 1);
}

#endif
