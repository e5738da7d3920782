/* What this process knows: its membership in the region, its devices and their limits, what it was charged for what.
 *
 * All of it lives in one anonymous mapping that a forked child sees as zeroes (MADV_WIPEONFORK), which is the state
 * before the first call: no lock is held, no handle is known, and the next call attaches anew. The driver itself
 * answers such a child with NOT_INITIALIZED. A child of vfork or posix_spawn shares the memory and only calls exec.
 *
 * States
 *   VGPU_NEW       nothing was done yet, or it wasn't possible without the driver: calls are forwarded
 *   VGPU_JOINED    member of a region, limits decided as far as NVML knows the devices
 *   VGPU_READY     the driver's devices are mapped to the region's
 *   VGPU_REFUSED   injected, but quota or region is unusable: fail closed */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "cuda_api.h"
#include "gate.h"
#include "quota.h"
#include "region.h"
#include "table.h"

#define VGPU_MAX_CONTEXTS 255
#define VGPU_NO_DEVICE    0xff

enum vgpu_state { VGPU_NEW = 0, VGPU_JOINED, VGPU_READY, VGPU_REFUSED };

/* Topics that keep a table; each is one namespace of keys. */
enum vgpu_topic {
    VGPU_POINTERS,     /* what cuMemAlloc and its like returned */
    VGPU_BLOCKS,       /* 2 MiB blocks that small requests share */
    VGPU_ARRAYS,       /* arrays and mipmapped arrays */
    VGPU_HANDLES,      /* handle of a VMM allocation -> its number */
    VGPU_ALLOCATIONS,  /* number of a VMM allocation -> what it takes */
    VGPU_MAPPINGS,     /* address of a mapping -> number of the VMM allocation behind it */
    VGPU_HOLDINGS,     /* place in an array or multicast object -> number of the VMM allocation there */
    VGPU_POOLS,        /* memory pools: what each has reserved */
    VGPU_POOLED,       /* what was allocated from pools */
    VGPU_GRAPHS,       /* executable graphs that allocate */
    VGPU_IMPORTS,      /* memory of other processes */
    VGPU_EXPORTS,      /* small requests that others may hold -> number of the share */
    VGPU_USES,         /* number of a share -> uses of it by this process beyond the first */
    VGPU_KERNELS,      /* kernel and context: its code has been loaded into it */
    VGPU_KERNELS_DEEP, /* functions and kernels that need much local memory -> how much */
    VGPU_TOPICS,
};

struct vgpu_context {
    CUcontext handle;     /* NULL: this place is free */
    CUgreenCtx green;     /* the green context that it was made from */
    uint64_t bytes;       /* charged for the context itself, under VGPU_KIND_CONTEXT */
    uint64_t limit_bytes; /* and for its heap, printf buffer and local memory beyond what it began with */
    uint64_t local_bytes; /* of local memory that there is room for, for each thread; 0: as at the beginning */
    uint8_t device;       /* index in the region */
    bool primary;
    uint32_t attached; /* cuCtxAttach calls not yet detached */
};

/* A bound of how many blocks hold certain small requests (small.c). */
struct vgpu_packing {
    uint64_t blocks;
    uint64_t placed_units; /* of 512 bytes, since the last block was added: what it has left at least */
};

/* Small arrays of one size of element, which have blocks of their own. */
struct vgpu_shelf {
    uint64_t arrays, units;
    struct vgpu_packing packing;
};

#define VGPU_SHELVES 6 /* elements of 1, 2, 4, 8, 16 bytes, unknown ones */

/* What small requests hold on one device. */
struct vgpu_small {
    uint64_t linear;              /* number of linear requests << 40 | their units of 512 bytes; atomic */
    uint64_t linear_blocks;       /* blocks with linear requests in them */
    uint64_t arrays, array_units; /* number and size of small arrays */
    uint64_t array_blocks;        /* charged for them */
    bool in_doubt;                /* blocks came or went since it was seen that this is what they hold */
    struct vgpu_shelf shelves[VGPU_SHELVES];
    uint64_t loose_blocks;        /* that hold arrays of whichever shelf, beside those of the shelves */
    struct vgpu_packing together; /* if they share them with linear requests: all blocks. Kept while there are arrays */
};

/* Memory of its own that grows (measure.c). */
struct vgpu_list {
    void *memory;
    size_t room_bytes;
};

struct vgpu_process {
    uint32_t state; /* enum vgpu_state */
    uint32_t attach_lock;
    uint64_t tick_ns;           /* when to look again at the region's file and at /etc/vgpu */
    struct vgpu_member *member; /* replaced when the region was; old ones stay mapped */
    bool stale;                 /* the region is gone and there is no new one: nothing is granted */
    bool nvml_held;             /* we have NVML initialised */
    bool old_kernel;            /* no MADV_WIPEONFORK: compare pids */
    bool charged_ahead;         /* something is, or may be, charged that the card doesn't hold for this process */
    bool shares;                /* memory with other processes: the card may hold for it what is charged to them */
    uint32_t in_debt;           /* something in debt_bytes */
    int pid;
    uint64_t quota_signature;
    uint64_t look_ns; /* before that, no other look for the dead */
    uint64_t limit_bytes[VGPU_MAX_DEVICES];
    int64_t debt_bytes[VGPU_MAX_DEVICES][VGPU_KINDS]; /* to give back (or, negative, to charge) with the next lock */
    int cuda_devices;
    uint8_t index_of[VGPU_MAX_DEVICES];          /* CUDA ordinal -> index in the region */
    uint64_t cuda_total_bytes[VGPU_MAX_DEVICES]; /* by index; 0: not known */
    uint64_t nvml_total_bytes[VGPU_MAX_DEVICES];
    uint64_t context_estimate_bytes[VGPU_MAX_DEVICES];
    uint32_t small_lock;   /* held while the driver is asked for something small */
    uint32_t packing_lock; /* innermost: only the region's lock is taken with it */
    uint32_t pool_lock;
    uint32_t vmm_lock;
    uint64_t vmm_number;   /* of the last VMM allocation */
    uint64_t orphan_pools; /* destroyed while memory from them was in use */
    uint32_t context_lock;
    uint32_t birth_lock;                       /* held while a context is made or taken down */
    uint32_t context_count;                    /* places 0 .. context_count - 1 may be in use */
    struct vgpu_small small[VGPU_MAX_DEVICES]; /* guarded by packing_lock but for what small.h says */
    uint64_t graph_bytes[VGPU_MAX_DEVICES];    /* charged for the driver's reserve for graphs */
    uint64_t module_bytes[VGPU_MAX_DEVICES]; /* for code, globals, streams and whatever else the driver takes by itself,
                                                under VGPU_KIND_MODULE; with birth_lock */
    int64_t drift_bytes[VGPU_MAX_DEVICES];   /* that the card held more than was charged, when it was compared last */
    struct vgpu_table tables[VGPU_TOPICS];
    struct vgpu_context contexts[VGPU_MAX_CONTEXTS];
    struct vgpu_member first_member;
    struct vgpu_quota_texts texts;
    struct vgpu_gate gate;
    uint32_t host_pid;        /* by which NVML knows this process; 0: not found out yet */
    struct vgpu_list running; /* of nvmlProcessInfo_t: who was on the card when it was asked last. With closed gate */
    struct vgpu_list earlier; /* the same, at an earlier moment. With birth_lock */
    unsigned int earlier_count;
    unsigned int challenges; /* to be made yet to find host_pid out */
    char why[200];           /* what makes a quota unusable */
};

extern struct vgpu_process *vgpu_process_page;

/* The slow halves of the two below. */
struct vgpu_process *vgpu_process_attach(bool with_cuda);
void vgpu_process_tick(struct vgpu_process *process, bool with_cuda);

/* Attaches if need be. Never NULL: look at the state. `with_cuda` false: NVML alone is enough. */
static inline struct vgpu_process *vgpu_enter_as(bool with_cuda) {
    struct vgpu_process *process = __atomic_load_n(&vgpu_process_page, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!process || process->old_kernel, 0)) return vgpu_process_attach(with_cuda);
    uint32_t state = __atomic_load_n(&process->state, __ATOMIC_ACQUIRE);
    if (__builtin_expect(state != VGPU_READY && (with_cuda || state != VGPU_JOINED), 0))
        return vgpu_process_attach(with_cuda);
    if (__builtin_expect(vgpu_clock_coarse_ns() >= __atomic_load_n(&process->tick_ns, __ATOMIC_RELAXED), 0))
        vgpu_process_tick(process, with_cuda);
    return process;
}

static inline struct vgpu_process *vgpu_enter(void) {
    return vgpu_enter_as(true);
}

/* For calls that only give back or count: no look at the clock. NULL if there is nothing to give back to. */
static inline struct vgpu_process *vgpu_enter_quietly(void) {
    struct vgpu_process *process = __atomic_load_n(&vgpu_process_page, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!process || process->old_kernel, 0)) return process ? vgpu_process_attach(true) : NULL;
    return __builtin_expect(process->state == VGPU_READY, 1) ? process : NULL;
}

/* Makes a refused process try again (cuInit after the quota appeared). */
void vgpu_process_retry(struct vgpu_process *process);

#endif
