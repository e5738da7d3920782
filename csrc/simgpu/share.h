/* Descriptors by which processes hand memory to each other: a memfd whose first page says what it stands for, and
 * whose rest is the data itself where the driver keeps it. */
#ifndef SIMGPU_SHARE_H
#define SIMGPU_SHARE_H

#include "memory.h"

#define SHARE_DATA UINT64_C(4096) /* the data begins behind this */

enum share_kind { SHARE_PHYSICAL = 1, SHARE_POOL = 2 };

struct share {
    uint64_t magic;
    uint32_t kind;
    uint32_t card;
    int64_t object;
    uint64_t bytes;
    union {
        CUmemAllocationProp physical;
        CUmemPoolProps pool;
    };
};

/* A new descriptor with room for `data_bytes`; -errno. */
int share_make(const struct share *share, uint64_t data_bytes);
/* Reads what a descriptor stands for; false for one that isn't ours. */
bool share_read(int fd, enum share_kind kind, struct share *share);
/* The visible device that is this card of the shared state, -1 if none. */
int device_of_card(uint32_t card);

#endif
