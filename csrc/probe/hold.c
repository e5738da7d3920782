/* alloc and hold: requests one after the other, each answered granted or refused. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"
#include "options.h"
#include "text.h"

struct holding {
    struct probe_block *blocks;
    uint64_t count;
    uint64_t bytes;
    uint64_t refused;
};

static bool parse_sizes(const struct probe_options *options, uint64_t sizes[PROBE_MAX_OPERANDS]) {
    for (int i = 0; i < options->operands; i++) {
        if (probe_size_parse(options->operand[i], &sizes[i])) continue;
        fprintf(stderr, "vgpu-probe: not a size: %s\n", options->operand[i]);
        return false;
    }
    return true;
}

static void request(const struct probe_session *session, const struct probe_options *options, uint64_t bytes,
                    struct holding *holding, struct probe_json *json) {
    struct probe_block *block = &holding->blocks[holding->count];
    CUresult code = probe_block_take(&session->driver, session->device, options->api, bytes, block);
    if (code == CUDA_SUCCESS) {
        holding->count++;
        holding->bytes += bytes;
    } else {
        holding->refused++;
    }
    probe_json_begin(json, NULL, '{');
    probe_json_number(json, "bytes", bytes);
    probe_json_bool(json, "granted", code == CUDA_SUCCESS);
    probe_json_number(json, "code", (uint64_t)code);
    probe_json_end(json, '}');
    if (options->json) return;
    if (code == CUDA_SUCCESS) {
        printf("granted  %s\n", probe_size_format(bytes).text);
    } else {
        printf("refused  %s: %s\n", probe_size_format(bytes).text, probe_driver_code(&session->driver, code).text);
    }
    fflush(stdout); /* in order with the library's line on stderr */
}

/* Requests everything. Prints the device and each answer; the JSON document stays open for the caller's last word. */
static void request_all(const struct probe_session *session, const struct probe_options *options, const uint64_t *sizes,
                        struct holding *holding, struct probe_json *json) {
    if (!options->json) printf("device %d  %s  %s\n", options->device, session->name, session->uuid);
    fflush(stdout);
    probe_json_begin(json, NULL, '{');
    probe_json_number(json, "device", (uint64_t)options->device);
    probe_json_text(json, "uuid", session->uuid);
    probe_json_text(json, "api", probe_api_names[options->api]);
    probe_json_begin(json, "requests", '[');
    for (int i = 0; i < options->operands; i++) {
        for (uint64_t n = 0; n < options->count; n++)
            request(session, options, sizes[i], holding, json);
    }
    probe_json_end(json, ']');
    probe_json_number(json, "granted_bytes", holding->bytes);
    probe_json_number(json, "refused", holding->refused);
}

/* Returns whether every block could be given back. */
static bool give_all(const struct probe_session *session, struct holding *holding) {
    bool all = true;
    while (holding->count > 0) {
        CUresult code = probe_block_give(&session->driver, &holding->blocks[--holding->count]);
        if (code == CUDA_SUCCESS) continue;
        fprintf(stderr, "vgpu-probe: a block can't be given back: %s\n",
                probe_driver_code(&session->driver, code).text);
        all = false;
    }
    return all;
}

static bool holding_open(struct holding *holding, const struct probe_options *options) {
    *holding = (struct holding){0};
    holding->blocks = calloc((size_t)options->operands * options->count, sizeof *holding->blocks);
    if (holding->blocks == NULL) fputs("vgpu-probe: out of host memory\n", stderr);
    return holding->blocks != NULL;
}

int probe_alloc(const struct probe_options *options) {
    uint64_t sizes[PROBE_MAX_OPERANDS];
    struct probe_session session;
    struct holding holding;
    struct probe_json json = {.stream = options->json ? stdout : NULL};
    if (!parse_sizes(options, sizes)) return PROBE_USAGE;
    if (!probe_session_open(&session, options) || !holding_open(&holding, options)) return PROBE_UNABLE;
    request_all(&session, options, sizes, &holding, &json);
    bool refused = holding.refused > 0;
    bool returned = give_all(&session, &holding);
    probe_json_bool(&json, "returned", returned);
    probe_json_end(&json, '}');
    probe_json_done(&json);
    free(holding.blocks);
    return refused || !returned ? PROBE_BAD : PROBE_GOOD;
}

/* Waits for a signal of the set, or for so many seconds (for ever if negative); launches kernels meanwhile if asked. */
static void wait_until(const sigset_t *signals, double seconds, struct probe_kernel *kernel) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double deadline = (double)end.tv_sec + (double)end.tv_nsec * 1e-9 + seconds;
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double left = seconds < 0 ? 3600 : deadline - (double)now.tv_sec - (double)now.tv_nsec * 1e-9;
        if (left <= 0) return;
        if (kernel != NULL && left > 0.01) left = 0.01;
        struct timespec pause = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
        if (sigtimedwait(signals, NULL, &pause) > 0) return;
        if (kernel != NULL) probe_kernel_launch(kernel);
    }
}

int probe_hold(const struct probe_options *options) {
    uint64_t sizes[PROBE_MAX_OPERANDS];
    struct probe_session session;
    struct probe_kernel kernel;
    struct holding holding;
    struct probe_json json = {.stream = options->json ? stdout : NULL};
    if (!parse_sizes(options, sizes)) return PROBE_USAGE;
    /* Blocked before the driver starts threads of its own; a blocked signal reaches even a container's first process.
     */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (!probe_session_open(&session, options) || !holding_open(&holding, options)) return PROBE_UNABLE;
    if (options->busy) {
        const char *reason = probe_kernel_load(&kernel, &session.driver);
        if (reason != NULL) {
            probe_unable(options, reason);
            return PROBE_UNABLE;
        }
    }
    request_all(&session, options, sizes, &holding, &json);
    bool held = holding.refused == 0;
    probe_json_bool(&json, "held", held);
    probe_json_number(&json, "pid", (uint64_t)getpid());
    probe_json_end(&json, '}');
    probe_json_done(&json);
    if (held) {
        if (!options->json) printf("held     %s by pid %d\n", probe_size_format(holding.bytes).text, (int)getpid());
        fflush(stdout);
        wait_until(&signals, options->seconds, options->busy ? &kernel : NULL);
    }
    bool returned = give_all(&session, &holding);
    if (held && returned && !options->json) puts("released");
    free(holding.blocks);
    return held && returned ? PROBE_GOOD : PROBE_BAD;
}
