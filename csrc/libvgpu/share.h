/* Memory that several processes of a container use: exported by one, imported by others.
 *
 * It is charged once, to its owner: the exporter, as long as he lives and hasn't freed it; then one of the importers.
 * Who owns and who uses what stands in a file beside the region, guarded by the region's lock. Memory that comes from
 * outside (another container, or with a handle that tells nothing) is charged to the importer.
 *
 * A share is known by a number made of what passes from process to process: the bytes of an IPC handle, or the inode
 * of a descriptor. */
#ifndef VGPU_SHARE_H
#define VGPU_SHARE_H

#include <stdbool.h>

#include "vgpu/region.h"

#define VGPU_SHARE_MAGIC UINT64_C(0x0053485553505647) /* "GVPSUHS\0" */
#define VGPU_MAX_SHARES  1024

struct vgpu_share_header {
    uint64_t magic;
    uint32_t abi;
    uint32_t max_shares;
    uint64_t region_unix_ns; /* when the region was created whose slots are named here */
    uint64_t used;           /* upper bound of how many are in use: 0 saves a look */
};

struct vgpu_share {
    uint64_t key;   /* 0: free */
    uint64_t owner; /* token of the slot that is charged */
    uint64_t bytes;
    uint32_t device;
    uint32_t apart;                      /* 1: the owner's charge isn't kept by this share (memory of a pool) */
    uint64_t users[VGPU_MAX_SLOTS / 64]; /* bit per slot, the owner's too */
};

struct vgpu_shares {
    struct vgpu_share_header header;
    struct vgpu_share shares[VGPU_MAX_SHARES];
};

struct vgpu_member;
struct vgpu_process;

/* Number of something that is passed between processes; never 0. */
uint64_t vgpu_share_key(const void *bytes, uint64_t count);

/* Number of what a descriptor leads to, 0 if it leads to something that others lead to as well (a device node). */
uint64_t vgpu_share_key_of_fd(int fd);

/* A descriptor of our own for what the program's leads to; -1, which the driver refuses, if it leads nowhere or none is
 * left. */
int vgpu_share_own_fd(int fd);

/* This process has exported memory that it is charged for. false if that can't be noted (too many). */
bool vgpu_share_publish(struct vgpu_process *process, uint64_t key, int device, uint64_t bytes, bool apart);

/* This process has imported it. true if somebody in this region is charged for it already; *bytes says for how much. */
bool vgpu_share_open(struct vgpu_process *process, uint64_t key, uint64_t *bytes);

/* This process uses it no longer. If it was charged for it, another user is now, or nobody if there is none. false if
 * there is no such share (any more). */
bool vgpu_share_close(struct vgpu_process *process, uint64_t key);

/* With both regions' locks, after this process's bytes were entered into the one that replaced the other: its shares.
 */
void vgpu_share_follow(const struct vgpu_member *old, struct vgpu_member *fresh);

/* With the region's lock: hands on what the slot owned, takes it out of every share. */
void vgpu_share_evict(struct vgpu_member *member, uint32_t slot);

#endif
