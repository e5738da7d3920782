/* The simulated cards: one file that all processes of a machine share, and everything that is done to it.
 *
 * Owns: the file's layout and life, who takes part (slots), what each process really holds of each card, memory that
 * lives longer than one process (objects), utilisation, and the faults that tests ask for. The driver (libcuda), NVML
 * and the `simgpu` program are three users of this one interface; none of them knows the layout by heart.
 *
 * Vocabulary
 *   card     one simulated GPU; index counts as NVML does
 *   slot     one process that takes part; a viewer (NVML, the CLI) has a slot too but holds no memory
 *   holding  what one slot holds of one card, by kind
 *   object   memory that several processes may share (IPC, exported VMM handles and pools): it lives until its last
 *            user is gone and is always charged to exactly one of them
 *
 * What always holds outside the lock: card.used_bytes = sum of all holdings + sum of all objects of that card.
 * Whoever finds the lock's owner dead recomputes that sum.
 *
 * Who is alive: a process maps the file, locks the byte of its slot (F_OFD_SETLK) and closes the descriptor. The
 * mapping keeps that lock and the kernel drops it with the memory (exit, exec, SIGKILL). The mapping isn't inherited by
 * a forked child: a child that wants to take part joins by itself. */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC       UINT64_C(0x317570676d697300) /* "\0simgpu1" */
#define SIM_LAYOUT      1u
#define SIM_MAX_CARDS   16u
#define SIM_MAX_SLOTS   2048u
#define SIM_MAX_OBJECTS 8192u
#define SIM_MAX_FAULTS  64u
#define SIM_BLOCK_BYTES (UINT64_C(2) << 20)
#define SIM_MIB         (UINT64_C(1) << 20)

#define SIM_STATE_ENV  "SIMGPU_STATE"
#define SIM_STATE_PATH "/run/simgpu/state"

#define SIM_DRIVER_VERSION "535.261.03"
#define SIM_CUDA_VERSION   13000 /* what cuDriverGetVersion says: all three generations of clients accept it */

/* The uuid of a MIG device's parent is that of the device with these bits of the first byte turned over. */
#define SIM_MIG_PARENT 0x80

enum sim_kind { SIM_CONTEXT, SIM_MODULE, SIM_DATA, SIM_KINDS };

/* Properties of a card that don't change. */
struct sim_card_config {
    char uuid[64]; /* "GPU-…", or "MIG-…" for a MIG device */
    char name[64];
    uint64_t total_bytes;    /* as NVML tells it */
    uint64_t reserved_bytes; /* kept by the driver: cuDeviceTotalMem is total - reserved */
    uint64_t context_bytes;  /* what one context takes */
    uint64_t kernel_ns;      /* how long a launch keeps the card busy; 0: no time at all */
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t multiprocessors;
    uint32_t unified;     /* 1: memory is shared with the host, NVML can't tell it (NOT_SUPPORTED) */
    uint32_t pool_blocks; /* by how many blocks a memory pool grows at once */
    uint8_t pad[60];
};

#define SIM_BUSY_BUCKETS   32u
#define SIM_BUSY_BUCKET_NS UINT64_C(125000000)

struct sim_busy {        /* busy time by eighths of a second, for four seconds back */
    uint64_t until_ns;   /* work queued so far ends here */
    uint64_t settled_ns; /* busy time before this is in the buckets */
    struct {
        uint32_t epoch;
        uint32_t busy_us;
    } bucket[SIM_BUSY_BUCKETS];
};

struct sim_card {
    struct sim_card_config config;
    uint64_t used_bytes;
    uint64_t pad[7];
    struct sim_busy busy;
};

struct sim_holding {
    uint64_t bytes[SIM_KINDS]; /* private to the process; objects are counted apart */
    uint64_t allocations;      /* live requests of the program, whatever blocks they share */
    uint64_t launches;         /* by the process's first thread that launches */
    uint32_t contexts;
    uint32_t pad0;
    uint64_t other_launches; /* by all its other threads */
    uint64_t pad;
    struct sim_busy busy;
};

struct sim_slot {
    uint32_t state; /* 0 free, else enum sim_role */
    uint32_t generation;
    int32_t pid;               /* in the process's own pid namespace */
    int32_t host_pid;          /* as the host sees it, 0 while unknown */
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid */
    uint64_t start_time_ticks; /* field 22 of /proc/self/stat */
    uint64_t pad[4];
    struct sim_holding holding[SIM_MAX_CARDS];
};

struct sim_object {
    uint32_t state; /* 0 free, 1 in use */
    uint32_t generation;
    uint32_t card;
    uint32_t owner; /* slot that is charged */
    uint64_t bytes; /* may be 0: a pool whose memory is counted elsewhere */
    uint64_t pad;
    uint64_t users[SIM_MAX_SLOTS / 64];
};

struct sim_fault {
    char call[48];
    uint32_t first; /* fails from the first-th to the last-th call, counted over all processes, from 1 */
    uint32_t last;
    int32_t code;
    uint32_t calls;
};

struct sim_state {
    uint64_t magic;
    uint32_t layout;
    uint32_t cards;
    uint64_t host_pid_namespace; /* where the state was created: pids are told as that namespace sees them */
    uint64_t created_unix_ns;
    uint64_t pad0[4];
    uint32_t lock; /* slot index + 1 of the owner */
    uint32_t pad1[15];
    uint32_t faults;     /* entries of fault[] in use; read on every call of the driver */
    uint32_t slots_used; /* slots ever used: no need to look further */
    uint32_t objects_used;
    uint32_t pad2[13];
    struct sim_card card[SIM_MAX_CARDS];
    struct sim_fault fault[SIM_MAX_FAULTS];
    struct sim_object object[SIM_MAX_OBJECTS];
    struct sim_slot slot[SIM_MAX_SLOTS];
};

enum sim_role { SIM_PROGRAM = 1, SIM_VIEWER = 2 };

/* One process's way to the state. Zero-initialised is "not open". Not shared between processes; safe for threads once
 * joined. */
struct sim_view {
    struct sim_state *state;
    uint32_t slot;
    uint32_t role;
    uint8_t *alive; /* 1 in the process that joined, 0 (wiped by the kernel) in its forked children */
    char path[PATH_MAX];
};

/* ---- files (state.c) ---- */

/* Fills in a named profile ("T4", "H100", "A100", "L4", "GB10", …) or "NAME:MIB[:CONTEXT_MIB[:RESERVED_MIB]]".
 * `index` makes the uuid unique. 0, or -EINVAL for text that isn't understood. */
int sim_card_parse(const char *text, unsigned index, struct sim_card_config *config);

/* Writes a fresh state beside `path` and renames it there: running processes keep the old one. 0 or -errno. */
int sim_create(const char *path, const struct sim_card_config *cards, unsigned count);

/* The state that a process without arguments uses: $SIMGPU_STATE, else SIM_STATE_PATH if there, else
 * /tmp/simgpu-<uid>/state. */
void sim_default_path(char path[PATH_MAX]);

/* Maps the state at `path` (NULL: the default one, created with one T4 where it is missing) and takes a slot.
 * 0 or -errno; -EAGAIN when all slots are taken, -EPROTO for a file that is no state. */
int sim_join(struct sim_view *view, const char *path, enum sim_role role);

/* Gives everything back and unmaps. Harmless on a view that isn't joined. */
void sim_leave(struct sim_view *view);

/* True in the process that joined, false in a forked child of it (where `state` must not be touched). */
static inline bool sim_alive(const struct sim_view *view) {
    return view->alive && *view->alive;
}

/* For viewers: true after making sure that the view is usable, by joining again in a forked child. */
bool sim_refresh(struct sim_view *view);

/* ---- memory (ledger.c) ---- */

/* Takes `bytes` of the card for this process, all or nothing. Where they don't fit, dead processes' memory is given
 * back first. 0 or -ENOMEM. `requests` is added to the number of live allocations. */
int sim_charge(struct sim_view *view, unsigned card, enum sim_kind kind, uint64_t bytes, int requests);
void sim_uncharge(struct sim_view *view, unsigned card, enum sim_kind kind, uint64_t bytes, int requests);

/* Counts a request that needs no new block, or one that gives none back (no lock). */
void sim_count_request(struct sim_view *view, unsigned card, int requests);
void sim_count_context(struct sim_view *view, unsigned card, int contexts);

/* What the card has left for anybody; what dead processes held counts as taken until sim_reap(). */
uint64_t sim_free_bytes(struct sim_view *view, unsigned card);

/* Gives back what dead processes hold and moves the charge of their objects to a living user. */
void sim_reap(struct sim_view *view);

/* Turns `bytes` that this process holds as SIM_DATA into an object with this process as user; `bytes` 0 makes an
 * object that is only a name. Its number, or -ENOSPC. Numbers are unique in the state's life. */
int64_t sim_object_create(struct sim_view *view, unsigned card, uint64_t bytes);
/* Becomes a user. 0; 1 if it was one already; -ENOENT for an object that died. */
int sim_object_use(struct sim_view *view, int64_t object);
/* Stops being a user; the memory dies with the last one, the charge moves on if this was the owner. */
void sim_object_drop(struct sim_view *view, int64_t object);
/* What a process really holds of one card. */
struct sim_process {
    int32_t pid;    /* as the host sees it where that is known, else one that no process has */
    int32_t ns_pid; /* as the process itself does */
    uint32_t slot;
    uint32_t contexts;
    uint64_t bytes[SIM_KINDS]; /* objects that it is charged for are in SIM_DATA */
    uint64_t allocations;
    uint64_t launches;
};

/* Living processes that hold something of the card or have a context on it, at most `max` of them; their number (may
 * be more than `max`). Reaps first and resolves pids where this process is in the host's namespace. */
unsigned sim_processes(struct sim_view *view, unsigned card, struct sim_process *out, unsigned max);

/* ---- utilisation (busy.c) ---- */

uint64_t sim_now_ns(void); /* CLOCK_MONOTONIC */

/* Queues `ns` of work of this process on the card; the time at which it will be done. */
uint64_t sim_busy_add(struct sim_view *view, unsigned card, uint64_t ns);
/* Share of the last `window_ns` (at most three seconds) in which the card, or one slot on it, was busy: 0 to 100. */
unsigned sim_card_busy_percent(struct sim_view *view, unsigned card, uint64_t window_ns);
unsigned sim_slot_busy_percent(struct sim_view *view, uint32_t slot, unsigned card, uint64_t window_ns);

/* ---- pids (pids.c) ---- */

/* Identity of this process for its slot. */
void sim_identify(struct sim_slot *slot);
/* Fills host_pid of living slots of other pid namespaces, if this process is in the host's. Returns how many are
 * still unknown. Cheap when nothing is unknown. */
unsigned sim_resolve_pids(struct sim_view *view);
bool sim_slot_alive(struct sim_view *view, uint32_t slot);

/* ---- faults (faults.c) ---- */

#define SIM_FAULT_MISSING (-1) /* code: cuGetProcAddress doesn't find the symbol */

/* Lets calls first..last of `call` (exported name, such as "cuMemAlloc_v2", or an NVML one) fail with `code`, counted
 * from now on. 0 or -ENOSPC, -ENAMETOOLONG. */
int sim_fault_add(struct sim_view *view, const char *call, uint32_t first, uint32_t last, int32_t code);
void sim_fault_clear(struct sim_view *view);
/* Counts this call; the code with which it must fail, else 0. */
int32_t sim_fault_take(struct sim_view *view, const char *call);
/* Whether the default state says that this symbol is missing; for callers that haven't joined. */
bool sim_symbol_missing(const char *name);
static inline bool sim_faults(const struct sim_view *view) {
    return __atomic_load_n(&view->state->faults, __ATOMIC_RELAXED) != 0;
}

/* ---- lock (lock.c): short sections only, never a system call that can block inside ---- */
void sim_lock(struct sim_view *view);
void sim_unlock(struct sim_view *view);

#endif
