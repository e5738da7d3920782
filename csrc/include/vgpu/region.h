/* Layout of the region: the ledger that all processes of one container share, one file of VGPU_REGION_BYTES.
 *
 * It is a ledger, never a source of a limit: each process reads the quota itself and publishes here, for the monitor,
 * what it believed. Fixed-width integers, explicit padding, little endian, append only: a reader of abi n understands
 * abi n - 1. The monitor reads the file without mapping it and trusts nothing in it (a tenant can write it).
 *
 * Who may write what
 *   lock            compare-and-swap only; 0 is free, else the owner's token (slot index + 1, slot generation)
 *   devices[], used bytes of slots, slot state     only the owner of the lock
 *   refusals and what belongs to them              everybody, without the lock (relaxed, atomic)
 *   launches        the slot's own process, without the lock (relaxed)
 *
 * Who is alive: while a process has the region mapped, it holds an open-file-description write lock (F_OFD_SETLK) on
 * byte VGPU_SLOT_LOCK_OFFSET + slot index of the file. The mapping keeps that lock although the descriptor is closed
 * at once; the kernel drops it with the process's memory (exit, exec, kill). So neither reused pids nor pid
 * namespaces, zombies, hidepid or closed descriptors can mislead; pid and start time serve people and the monitor.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <stdint.h>

#include "vgpu/version.h"

#define VGPU_REGION_MAGIC     UINT64_C(0x0055504756494b0a) /* bytes "\nKIVGPU\0" */
#define VGPU_MAX_DEVICES      16
#define VGPU_MAX_SLOTS        1024
#define VGPU_UUID_BYTES       64 /* "GPU-…" or "MIG-…", NUL padded */
#define VGPU_SLOT_LOCK_OFFSET (INT64_C(1) << 40)

/* What the bytes of a process are for. */
enum vgpu_kind {
    VGPU_KIND_CONTEXT = 0, /* the driver's own, per context */
    VGPU_KIND_MODULE = 1,  /* code and globals of loaded modules and libraries */
    VGPU_KIND_BUFFER = 2,  /* everything that the program asked for */
    VGPU_KINDS = 3,
};

/* Where the limit that holds came from (design: the first that is there decides). */
enum vgpu_limit_source {
    VGPU_SOURCE_NONE = 0,      /* not decided yet */
    VGPU_SOURCE_KAI = 1,       /* /etc/vgpu/limit */
    VGPU_SOURCE_MEMORY = 2,    /* annotation gpu-memory */
    VGPU_SOURCE_FRACTION = 3,  /* annotation gpu-fraction */
    VGPU_SOURCE_ENV = 4,       /* environment; by hand, or lowering one of the above */
    VGPU_SOURCE_UNLIMITED = 5, /* by hand, no limit asked for */
    VGPU_SOURCE_UNUSABLE = 6,  /* injected, but no usable limit: every cuInit fails */
};

struct vgpu_region_header { /* 256 bytes */
    uint64_t magic;
    uint32_t abi;
    uint32_t header_bytes;
    uint32_t device_bytes; /* size of one struct vgpu_region_device */
    uint32_t slot_bytes;   /* size of one struct vgpu_region_slot */
    uint32_t max_devices;
    uint32_t max_slots;
    uint64_t total_bytes; /* of the file */
    uint64_t created_unix_ns;
    uint64_t lock;
    uint32_t device_count; /* devices[0 .. device_count) are filled */
    uint32_t ready;        /* 1 once the creator has filled the rest */
    uint64_t changes;      /* bumped when a dead slot was taken back: totals were recomputed */
    uint8_t pad[256 - 72];
};

struct vgpu_region_device { /* 256 bytes; index counts as NVML does in the container */
    char uuid[VGPU_UUID_BYTES];
    uint64_t physical_bytes;   /* what the card has */
    uint64_t limit_bytes;      /* what is enforced; UINT64_MAX without a limit */
    uint64_t used_bytes;       /* sum over all slots and kinds */
    uint64_t unbelieved_bytes; /* value in /etc/vgpu/limit that was not believed, else 0 */
    uint64_t refusals;         /* requests refused */
    uint64_t refused_largest_bytes;
    uint64_t refused_last_unix_ns;
    uint32_t limit_source; /* enum vgpu_limit_source */
    uint32_t pad0;
    uint64_t peak_used_bytes;
    uint8_t pad[256 - 64 - 9 * 8];
};

struct vgpu_region_slot { /* 640 bytes */
    uint32_t state;       /* 0 free, 1 in use */
    uint32_t generation;  /* grows each time the slot is taken */
    int32_t pid;          /* in the process's own pid namespace */
    uint32_t pad0;
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid, 0 if it can't be told */
    uint64_t start_time_ticks; /* field 22 of /proc/self/stat */
    uint64_t claimed_unix_ns;
    uint64_t pad1[3];
    uint64_t used_bytes[VGPU_MAX_DEVICES][VGPU_KINDS];
    uint64_t launches[VGPU_MAX_DEVICES]; /* kernel launches so far */
    uint8_t pad[640 - 64 - VGPU_MAX_DEVICES * VGPU_KINDS * 8 - VGPU_MAX_DEVICES * 8];
};

struct vgpu_region {
    struct vgpu_region_header header;
    struct vgpu_region_device devices[VGPU_MAX_DEVICES];
    struct vgpu_region_slot slots[VGPU_MAX_SLOTS];
};

#define VGPU_REGION_BYTES sizeof(struct vgpu_region)

_Static_assert(sizeof(struct vgpu_region_header) == 256, "region header");
_Static_assert(sizeof(struct vgpu_region_device) == 256, "region device");
_Static_assert(sizeof(struct vgpu_region_slot) == 640, "region slot");
_Static_assert(VGPU_REGION_BYTES <= 1024 * 1024, "region is small");

#endif
