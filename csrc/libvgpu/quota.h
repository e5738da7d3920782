/* Which quota holds: texts and numbers in, bytes out. Knows no driver and no region; the same rules stand in the
 * monitor, and tests/vectors/limits.json holds both to them. */
#ifndef VGPU_QUOTA_H
#define VGPU_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu/region.h"

#define VGPU_MIB              UINT64_C(1048576)
#define VGPU_UNLIMITED        UINT64_MAX
#define VGPU_QUOTA_TEXT_BYTES 64

/* A text as it was found. */
struct vgpu_text {
    bool present;
    bool unreadable; /* there, but can't be read, or longer than any sensible value */
    char text[VGPU_QUOTA_TEXT_BYTES];
};

/* Everything that a decision rests on. */
struct vgpu_quota_texts {
    bool injected; /* /etc/vgpu is there */
    bool mounted;  /* and is a mount */
    struct vgpu_text limit, memory, fraction;
    struct vgpu_text environment[VGPU_MAX_DEVICES]; /* CUDA_DEVICE_MEMORY_LIMIT_<i>, else CUDA_DEVICE_MEMORY_LIMIT */
};

struct vgpu_quota {
    uint64_t limit_bytes; /* VGPU_UNLIMITED without a limit */
    enum vgpu_limit_source source;
    uint64_t unbelieved_bytes; /* value of /etc/vgpu/limit that was not believed, else 0 */
    char why[160];             /* what is wrong, when source is VGPU_SOURCE_UNUSABLE */
};

/* An integer with nothing, k, m, g, t, Ki, Mi, Gi or Ti behind it (all binary, any case), surrounding blanks ignored.
 * 0, -ENODATA for a text of blanks only, -EINVAL for anything else, also for what doesn't fit in 64 bits. */
int vgpu_quota_parse(const char *text, uint64_t *bytes);

/* A decimal number x with 0 < x < 1, times `total_bytes`, rounded down. 0, -ENODATA, -EINVAL. */
int vgpu_quota_parse_fraction(const char *text, uint64_t total_bytes, uint64_t *bytes);

/* Decides for the device `index`, whose NVML total is `card_bytes` and usable memory `physical_bytes`. */
struct vgpu_quota vgpu_quota_decide(const struct vgpu_quota_texts *texts, int index, uint64_t card_bytes,
                                    uint64_t physical_bytes);

/* Reads /etc/vgpu. The environment is read apart: it belongs to the program, and only at its first call. */
void vgpu_quota_read(struct vgpu_quota_texts *texts);
void vgpu_quota_read_environment(struct vgpu_quota_texts *texts);

/* A number that changes when a file of /etc/vgpu was changed, replaced or removed. */
uint64_t vgpu_quota_signature(void);

#endif
