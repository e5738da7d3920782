/* The probe's command line, and the verdicts that its exit code tells. */
#ifndef VGPU_PROBE_OPTIONS_H
#define VGPU_PROBE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"
#include "driver.h"

enum probe_verdict {
    PROBE_GOOD = 0,   /* as promised, everything granted */
    PROBE_BAD = 1,    /* the promise isn't kept, or a request was refused */
    PROBE_USAGE = 2,  /* the command line is wrong */
    PROBE_UNABLE = 3, /* nothing could be judged: no driver, no device, cuInit refused, no region */
};

#define PROBE_MAX_OPERANDS 64

struct probe_options {
    bool json;
    bool csv;
    bool whole_card;
    bool busy;
    int device; /* -1: not given */
    enum probe_api api;
    enum probe_route route;
    double seconds; /* < 0: until a signal */
    uint64_t count;
    uint64_t step_bytes;   /* 0: chosen by the quota */
    uint64_t expect_bytes; /* 0: not given */
    int operands;
    const char *operand[PROBE_MAX_OPERANDS];
};

int probe_info(const struct probe_options *options);
int probe_alloc(const struct probe_options *options);
int probe_hold(const struct probe_options *options);
int probe_verify(const struct probe_options *options);
int probe_region(const struct probe_options *options);

/* Says on stderr, and with --json as {"verdict": "unable", "reason": …}, why nothing could be judged. Returns false. */
bool probe_unable(const struct probe_options *options, const char *reason);

/* Shared by the commands: driver opened, the device's primary context current; else says why and returns false. */
struct probe_session {
    struct probe_driver driver;
    CUdevice device;
    char name[128];
    char uuid[48];
};
bool probe_session_open(struct probe_session *session, const struct probe_options *options);

#endif
