#include "share.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "charge.h"
#include "step.h"

uint64_t vgpu_share_key(const void *bytes, uint64_t count) {
    uint64_t key = UINT64_C(14695981039346656037); /* FNV-1a */
    for (uint64_t i = 0; i < count; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): it takes an integer's bytes for unset */
        key = (key ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    return key ? key : 1;
}

uint64_t vgpu_share_key_of_fd(int fd) {
    struct stat status;
    int kept_errno = errno, failed = fstat(fd, &status);
    errno = kept_errno;
    if (failed || S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode)) return 0;
    uint64_t identity[2] = {status.st_dev, status.st_ino};
    return vgpu_share_key(identity, sizeof identity);
}

int vgpu_share_own_fd(int fd) {
    int kept_errno = errno, own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    errno = kept_errno;
    return own;
}

static uint64_t bit(uint32_t slot) {
    return UINT64_C(1) << (slot % 64);
}

static struct vgpu_share *find(const struct vgpu_member *member, uint64_t key) {
    for (int i = 0; member->shares && i < VGPU_MAX_SHARES; i++)
        if (member->shares->shares[i].key == key) return &member->shares->shares[i];
    return NULL;
}

/* With the lock. A user other than `slot`, VGPU_MAX_SLOTS if there is none. One that has died meanwhile is as good as
 * any: he is found dead at the next look, and it is handed on again. */
static uint32_t other_user(const struct vgpu_share *share, uint32_t slot) {
    for (uint32_t word = 0; word < VGPU_MAX_SLOTS / 64; word++) {
        uint64_t users = share->users[word];
        if (word == slot / 64) users &= ~bit(slot);
        if (users) return word * 64 + (uint32_t)__builtin_ctzll(users);
    }
    return VGPU_MAX_SLOTS;
}

/* With the lock. First the new owner is charged, then he is the owner: killed in between, the bytes are charged twice
 * until he ends, but never to nobody. */
static void hand_on(struct vgpu_region *region, struct vgpu_share *share, uint32_t heir) {
    uint64_t *bytes = &region->slots[heir].used_bytes[share->device % VGPU_MAX_DEVICES][VGPU_KIND_BUFFER];
    __atomic_store_n(bytes, *bytes + share->bytes, __ATOMIC_RELAXED);
    VGPU_STEP("share-handed");
    share->owner = (uint64_t)region->slots[heir].generation << 32 | (heir + 1);
    share->apart = 0;
}

/* With the lock. What the owner is charged for it, if he is still there: another is from now on. */
static uint64_t take_back(struct vgpu_region *region, const struct vgpu_share *share) {
    struct vgpu_region_slot *slot = &region->slots[((uint32_t)share->owner - 1) % VGPU_MAX_SLOTS];
    uint64_t *bytes = &slot->used_bytes[share->device % VGPU_MAX_DEVICES][VGPU_KIND_BUFFER];
    if (share->apart || slot->generation != (uint32_t)(share->owner >> 32) || *bytes < share->bytes) return 0;
    __atomic_store_n(bytes, *bytes - share->bytes, __ATOMIC_RELAXED);
    return share->bytes;
}

static void discard(struct vgpu_member *member, struct vgpu_share *share) {
    memset(share, 0, sizeof *share);
    VGPU_STEP("share-discarded");
    if (member->shares->header.used > 0) member->shares->header.used--;
}

void vgpu_share_evict(struct vgpu_member *member, uint32_t slot) {
    if (!member->shares || member->shares->header.used == 0) return;
    for (int i = 0; i < VGPU_MAX_SHARES; i++) {
        struct vgpu_share *share = &member->shares->shares[i];
        if (!share->key || !(share->users[slot / 64] & bit(slot))) continue;
        uint32_t heir = other_user(share, slot);
        if (heir == VGPU_MAX_SLOTS) {
            discard(member, share);
            continue;
        }
        if ((uint32_t)share->owner == slot + 1) hand_on(member->region, share, heir);
        share->users[slot / 64] &= ~bit(slot);
    }
}

/* In whichever order owner and users follow: a user who comes first is charged until the owner does. */
void vgpu_share_follow(const struct vgpu_member *old, struct vgpu_member *fresh) {
    if (!old->shares || !fresh->shares) return;
    for (int i = 0; i < VGPU_MAX_SHARES; i++) {
        const struct vgpu_share *before = &old->shares->shares[i];
        if (!before->key || !(before->users[old->slot / 64] & bit(old->slot))) continue;
        struct vgpu_share *share = find(fresh, before->key);
        if (!share && !(share = find(fresh, 0))) return;
        uint64_t *total = &fresh->region->devices[before->device % VGPU_MAX_DEVICES].used_bytes;
        if (share->key == 0) {
            fresh->shares->header.used++;
            *share = (struct vgpu_share){.key = before->key, .bytes = before->bytes, .device = before->device};
        }
        share->users[fresh->slot / 64] |= bit(fresh->slot);
        if (before->owner == old->token) {
            if (share->owner) *total -= take_back(fresh->region, share);
            share->owner = fresh->token;
            share->apart = before->apart;
        } else if (share->owner == 0) {
            hand_on(fresh->region, share, fresh->slot);
            *total += share->bytes;
        }
    }
}

bool vgpu_share_publish(struct vgpu_process *process, uint64_t key, int device, uint64_t bytes, bool apart) {
    struct vgpu_member *member = process->member;
    bool noted = false;
    process->charged_ahead = process->shares = true;
    if (!key || vgpu_region_lock(member) != 0) return false;
    struct vgpu_share *share = find(member, key);
    if (!share) share = find(member, 0);
    if (share && share->key == 0) {
        member->shares->header.used++; /* first: killed before the key is there, it is one too many, never too few */
        memset(share->users, 0, sizeof share->users);
        share->users[member->slot / 64] = bit(member->slot);
        share->owner = member->token;
        share->bytes = bytes;
        share->device = (uint32_t)device;
        share->apart = apart;
        share->key = key;
        noted = true;
    } else if (share) {
        noted = share->owner == member->token; /* exported once more */
    }
    vgpu_region_unlock(member);
    return noted;
}

bool vgpu_share_open(struct vgpu_process *process, uint64_t key, uint64_t *bytes) {
    struct vgpu_member *member = process->member;
    process->charged_ahead = process->shares = true;
    if (!key || vgpu_region_lock(member) != 0) return false;
    struct vgpu_share *share = find(member, key);
    bool again = false;
    if (share) {
        again = (share->users[member->slot / 64] & bit(member->slot)) != 0;
        share->users[member->slot / 64] |= bit(member->slot);
        *bytes = share->bytes;
    }
    vgpu_region_unlock(member);
    /* Also of what this process itself has exported: it isn't done with it when one of the two goes. */
    struct vgpu_entry use = {.key = key};
    if (again) vgpu_table_refer(&process->tables[VGPU_USES], key, 1, &use, NULL);
    return share != NULL;
}

bool vgpu_share_close(struct vgpu_process *process, uint64_t key) {
    struct vgpu_member *member = process->member;
    if (!key) return false;
    if (vgpu_table_refer(&process->tables[VGPU_USES], key, -1, NULL, NULL) >= 0) return true;
    if (vgpu_region_lock(member) != 0) return false;
    struct vgpu_share *share = find(member, key);
    uint64_t give_back = 0;
    int device = 0;
    if (share) {
        uint32_t heir = other_user(share, member->slot);
        if (share->owner == member->token) {
            device = (int)(share->device % VGPU_MAX_DEVICES);
            give_back = share->apart ? 0 : share->bytes;
            if (heir != VGPU_MAX_SLOTS) {
                hand_on(member->region, share, heir);
                __atomic_fetch_add(&member->region->devices[device].used_bytes, share->bytes, __ATOMIC_RELAXED);
            }
        }
        share->users[member->slot / 64] &= ~bit(member->slot);
        if (heir == VGPU_MAX_SLOTS) discard(member, share);
    }
    vgpu_region_unlock(member);
    vgpu_uncharge(process, device, VGPU_KIND_BUFFER, give_back);
    return share != NULL;
}
