/* verify: the quota is there to the last block, the next one is refused with code 2, and nothing is lost by it. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"
#include "options.h"
#include "text.h"
#include "vgpu/paths.h"

/* The card gives memory in blocks of this size: what is left of a quota below one of them can't be had. */
#define BLOCK_BYTES    (2 * PROBE_MIB)
#define MAX_COMPLAINTS 8

struct check {
    const struct probe_options *options;
    struct probe_session session;
    struct probe_nvml nvml;
    nvmlDevice_t nvml_device;
    bool nvml_answers;
    uint64_t total_bytes; /* the quota, as CUDA shows it */
    uint64_t base_bytes;  /* used before the first step: the context, and what others of the container hold */
    uint64_t step_bytes;
    struct probe_block *blocks;
    size_t count, room;
    uint64_t taken_bytes;
    int complaints;
    char complaint[MAX_COMPLAINTS][200];
};

__attribute__((format(printf, 2, 3))) static void complain(struct check *check, const char *format, ...) {
    if (check->complaints == MAX_COMPLAINTS) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->complaint[check->complaints++], sizeof *check->complaint, format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void say(const struct check *check, const char *format, ...) {
    if (check->options->json) return;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout); /* in order with the library's line on stderr */
}

static struct probe_size_text size(uint64_t bytes) {
    return probe_size_format(bytes);
}

static uint64_t free_bytes(struct check *check) {
    size_t free_now = 0;
    size_t total = 0;
    CUresult code = check->session.driver.cuMemGetInfo_v2(&free_now, &total);
    if (code != CUDA_SUCCESS) {
        complain(check, "cuMemGetInfo fails: %s", probe_driver_code(&check->session.driver, code).text);
    }
    return free_now;
}

/* What the quota's ledger counts. NVML's answer, where there is one, is free of what neighbours do meanwhile. */
static uint64_t used_bytes(struct check *check) {
    struct probe_nvml_memory memory;
    if (check->nvml_answers && probe_nvml_memory(&check->nvml, check->nvml_device, &memory)) return memory.used;
    uint64_t free_now = free_bytes(check);
    return check->total_bytes > free_now ? check->total_bytes - free_now : 0;
}

static uint64_t mark_of(size_t index) {
    return UINT64_C(0x7667707500000000) + index;
}

static CUresult take(struct check *check, uint64_t bytes) {
    if (check->count == check->room) {
        size_t room = check->room == 0 ? 64 : check->room * 2;
        struct probe_block *blocks = realloc(check->blocks, room * sizeof *blocks);
        if (blocks == NULL) return CUDA_ERROR_UNKNOWN;
        check->blocks = blocks;
        check->room = room;
    }
    struct probe_block *block = &check->blocks[check->count];
    CUresult code = probe_block_take(&check->session.driver, check->session.device, check->options->api, bytes, block);
    if (code != CUDA_SUCCESS) return code;
    code = probe_block_mark(&check->session.driver, block, mark_of(check->count));
    if (code != CUDA_SUCCESS) {
        complain(check, "a granted block can't be written: %s", probe_driver_code(&check->session.driver, code).text);
    }
    check->taken_bytes += block->bytes;
    check->count++;
    return CUDA_SUCCESS;
}

/* Takes in steps, the last ones smaller, until no whole block is said to be free. */
static void take_quota(struct check *check) {
    uint64_t step = check->step_bytes;
    for (;;) {
        uint64_t left = free_bytes(check);
        uint64_t want = left / BLOCK_BYTES * BLOCK_BYTES;
        if (want > step) want = step;
        /* A driver that charges nothing would grant for ever. */
        if (want == 0 || check->taken_bytes > check->total_bytes) return;
        CUresult code = take(check, want);
        if (code == CUDA_SUCCESS) continue;
        if (code != CUDA_ERROR_OUT_OF_MEMORY || want == BLOCK_BYTES) {
            complain(check, "%s refused with %s although %s were said to be free", size(want).text,
                     probe_driver_code(&check->session.driver, code).text, size(left).text);
            return;
        }
        step = want / 2 / BLOCK_BYTES * BLOCK_BYTES;
    }
}

/* One step more. Returns the driver's answer. */
static CUresult ask_for_more(struct check *check) {
    uint64_t used_then = used_bytes(check);
    CUresult code = take(check, BLOCK_BYTES);
    if (code == CUDA_SUCCESS) {
        complain(check, "%s more than the quota were granted", size(BLOCK_BYTES).text);
        return code;
    }
    say(check, "refused  %s more: %s", size(BLOCK_BYTES).text, probe_driver_code(&check->session.driver, code).text);
    if (code != CUDA_ERROR_OUT_OF_MEMORY) complain(check, "one step more was refused, but not as out of memory");
    uint64_t used_now = used_bytes(check);
    if (used_now != used_then) {
        complain(check, "the refusal moved what is used from %s to %s", size(used_then).text, size(used_now).text);
    }
    size_t damaged = 0;
    for (size_t i = 0; i < check->count; i++) {
        if (!probe_block_holds(&check->session.driver, &check->blocks[i], mark_of(i))) damaged++;
    }
    if (damaged > 0) {
        complain(check, "%zu of %zu blocks lost what was written to them", damaged, check->count);
    } else {
        say(check, "intact   %zu blocks hold what was written to them, used is still %s", check->count,
            size(used_now).text);
    }
    return code;
}

static void give_all(struct check *check) {
    while (check->count > 0) {
        CUresult code = probe_block_give(&check->session.driver, &check->blocks[--check->count]);
        if (code != CUDA_SUCCESS) {
            complain(check, "a block can't be given back: %s", probe_driver_code(&check->session.driver, code).text);
        }
    }
    check->taken_bytes = 0;
    uint64_t used_now = used_bytes(check);
    if (used_now != check->base_bytes) {
        complain(check, "after all was given back %s are used instead of %s", size(used_now).text,
                 size(check->base_bytes).text);
    }
}

/* The device's number in the variables' names isn't looked at: it is enough that somebody set a limit. */
static bool quota_in_force(void) {
    int abi = 0;
    if (probe_library_version(&abi) == NULL) return false;
    if (access(VGPU_QUOTA_DIR, F_OK) == 0) return true;
    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, "CUDA_DEVICE_MEMORY_LIMIT", 24) == 0) return true;
    }
    return false;
}

static bool check_open(struct check *check) {
    if (!check->options->whole_card && !quota_in_force()) {
        return probe_unable(check->options,
                            "no quota is in force here (no libvgpu.so in this process, or no limit for it): taking the "
                            "whole card would starve its other users; --whole-card does it all the same");
    }
    if (!probe_session_open(&check->session, check->options)) return false;
    size_t total = 0;
    check->session.driver.cuDeviceTotalMem_v2(&total, check->session.device);
    check->total_bytes = total;
    check->nvml_answers = probe_nvml_open(&check->nvml) == NULL &&
                          probe_nvml_find(&check->nvml, check->session.uuid, &check->nvml_device);
    check->base_bytes = used_bytes(check);
    check->step_bytes = check->options->step_bytes != 0 ? check->options->step_bytes : total / 16;
    check->step_bytes = check->step_bytes / BLOCK_BYTES * BLOCK_BYTES;
    if (check->step_bytes == 0) check->step_bytes = BLOCK_BYTES;
    return true;
}

static void conclude(struct check *check, uint64_t most, size_t steps, CUresult refusal, uint64_t again) {
    struct probe_json json = {.stream = check->options->json ? stdout : NULL};
    probe_json_begin(&json, NULL, '{');
    probe_json_text(&json, "verdict", check->complaints == 0 ? "kept" : "broken");
    probe_json_number(&json, "device", (uint64_t)check->options->device);
    probe_json_text(&json, "uuid", check->session.uuid);
    probe_json_text(&json, "api", probe_api_names[check->options->api]);
    probe_json_number(&json, "quota_bytes", check->total_bytes);
    probe_json_number(&json, "used_before_bytes", check->base_bytes);
    probe_json_number(&json, "taken_bytes", most);
    probe_json_number(&json, "steps", steps);
    probe_json_number(&json, "refusal_code", (uint64_t)refusal);
    probe_json_number(&json, "taken_again_bytes", again);
    probe_json_begin(&json, "complaints", '[');
    for (int i = 0; i < check->complaints; i++)
        probe_json_text(&json, NULL, check->complaint[i]);
    probe_json_end(&json, ']');
    probe_json_end(&json, '}');
    probe_json_done(&json);
    for (int i = 0; i < check->complaints; i++)
        say(check, "broken   %s", check->complaint[i]);
    if (check->complaints == 0) {
        say(check, "verdict  kept: %s, to the last block and not one more", size(check->total_bytes).text);
    } else {
        say(check, "verdict  broken");
    }
}

int probe_verify(const struct probe_options *options) {
    struct check check = {.options = options};
    if (!check_open(&check)) return PROBE_UNABLE;
    say(&check, "device %d  %s  %s", options->device, check.session.name, check.session.uuid);
    say(&check, "quota    %s, of which %s are in use (this program's context is one)", size(check.total_bytes).text,
        size(check.base_bytes).text);
    if (options->expect_bytes != 0 && options->expect_bytes != check.total_bytes) {
        complain(&check, "promised were %s, enforced are %s", size(options->expect_bytes).text,
                 size(check.total_bytes).text);
    }
    take_quota(&check);
    uint64_t most = check.taken_bytes;
    size_t steps = check.count;
    say(&check, "granted  %s in %zu steps of up to %s", size(most).text, steps, size(check.step_bytes).text);
    if (check.base_bytes + most + BLOCK_BYTES <= check.total_bytes) {
        complain(&check, "only %s of the quota can be had: the card has no more", size(check.base_bytes + most).text);
    }
    CUresult refusal = ask_for_more(&check);
    give_all(&check);
    say(&check, "returned all, %s are in use", size(used_bytes(&check)).text);
    take_quota(&check);
    uint64_t again = check.taken_bytes;
    if (again != most) complain(&check, "the second time only %s were granted", size(again).text);
    say(&check, "again    %s granted", size(again).text);
    give_all(&check);
    free(check.blocks);
    conclude(&check, most, steps, refusal, again);
    return check.complaints == 0 ? PROBE_GOOD : PROBE_BAD;
}
