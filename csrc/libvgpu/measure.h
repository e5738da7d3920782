/* What something that the driver allocates by itself really took: a context, a module, a heap. Nobody says so in
 * advance, so the card is asked before and after. In this order:
 *   1. NVML's figure for this process (by its host pid), which no neighbour changes;
 *   2. the change of the card's free memory, if it is in a sane range;
 *   3. what the caller thinks. */
#ifndef VGPU_MEASURE_H
#define VGPU_MEASURE_H

#include "process.h"

/* What the card said at one moment, and the ledger at the same. */
struct vgpu_measure {
    bool first_context; /* this process has had none yet */
    bool has_own;       /* NVML lists who is on the card and what this process holds is known from it */
    bool listed;        /* it is on the list: else it holds nothing, or the driver shows a container nobody */
    bool has_free;      /* the card's free memory is known */
    int device;
    uint64_t own_bytes;
    uint64_t free_bytes;
    uint64_t charged_bytes; /* to this process at that time */
    /* After our first context: how many are there that weren't before it, and what the least of them holds. */
    uint64_t least_fresh_bytes;
    unsigned int fresh;
};

/* Takes stock of the device (index in the region). With birth_lock, here and for the others. */
void vgpu_measure_start(struct vgpu_process *process, int device, struct vgpu_measure *before);

/* Bytes that `context`, which is new, took since `before`: at least `least_bytes` and at most `most_bytes`;
 * `otherwise_bytes` if the card can't tell. */
uint64_t vgpu_measure_context(struct vgpu_process *process, const struct vgpu_measure *before, CUcontext context,
                              uint64_t least_bytes, uint64_t most_bytes, uint64_t otherwise_bytes);

/* Bytes that came since `before`, with a sign, for what can shrink too; `otherwise_bytes` if the card can't tell. */
int64_t vgpu_measure_change(struct vgpu_process *process, const struct vgpu_measure *before, uint64_t otherwise_bytes);

/* Around a call that may take modules away, from whichever context: gives back what went. With birth_lock; of a context
 * that ends everything else was given back in between. (account_module.c) */
struct vgpu_modules {
    bool watched[VGPU_MAX_DEVICES];
    struct vgpu_measure before[VGPU_MAX_DEVICES];
};
void vgpu_modules_watch(struct vgpu_process *process, struct vgpu_modules *modules);
void vgpu_modules_settle(struct vgpu_process *process, const struct vgpu_modules *modules);

/* Compares what is charged to this process with what NVML says that it holds, on every device: what the card holds
 * beyond that the driver has taken by itself (for queues, code that came with a launch, executable graphs), and is
 * charged with the modules; what the card holds less is given back of that. Only what was so twice in a row counts: a
 * figure may lag behind. Where nothing says which is right, nothing is done. Called by the tick, and not waited for. */
void vgpu_measure_reconcile(struct vgpu_process *process);

/* Whether the next may tell more than 0. */
static inline bool vgpu_measure_can_tell(const struct vgpu_process *process) {
    return process->host_pid != 0 && !process->charged_ahead;
}

/* By how much more is charged to this process on the device than NVML says that it holds; 0 where that can't be told.
 * Never too much: memory that the ledger lacks makes it less. With birth_lock and the gate closed. */
uint64_t vgpu_measure_surplus(struct vgpu_process *process, int device);

#endif
