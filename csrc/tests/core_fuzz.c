/* Nonsense in, sense out: random texts for the quota's parser, random bytes in a region that is in use. Deterministic:
 * `core-fuzz [CASE [SEED [ROUNDS]]]`. Meant to run under the address and undefined-behaviour sanitizers (make debug).
 */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "charge.h"
#include "core_check.h"
#include "region.h"
#include "share.h"

static uint64_t state = 1;
static long rounds = 20000;

static uint64_t number(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Mostly from what sizes are made of. */
static void random_text(char *text, size_t room) {
    static const char alphabet[] = "0123456789kKmMgGtTiI .-+eEx\n\t\v9999b";
    size_t length = number(room);
    for (size_t i = 0; i < length; i++)
        text[i] = number(20) ? alphabet[number(sizeof alphabet - 1)] : (char)(1 + number(255));
    text[length] = '\0';
}

static void texts(void) {
    for (long round = 0; round < rounds * 20; round++) {
        char text[24], padded[32];
        uint64_t bytes = 0, again = 0;
        random_text(text, sizeof text);
        int result = vgpu_quota_parse(text, &bytes);
        CHECK(result == 0 || result == -EINVAL || result == -ENODATA, "%d", result);
        snprintf(padded, sizeof padded, " %s\n", text);
        CHECK(vgpu_quota_parse(padded, &again) == result && (result || again == bytes), "blanks matter: \"%s\"", text);
        if (result == 0) {
            const char *digits = text + strspn(text, " \n\t\v\f\r");
            uint64_t plain = strtoull(digits, NULL, 10);
            CHECK(bytes >= plain && (plain == 0) == (bytes == 0), "\"%s\" is %llu", text, (unsigned long long)bytes);
        }
        uint64_t total = number(UINT64_C(1) << 45) + 1;
        if (vgpu_quota_parse_fraction(text, total, &bytes) == 0)
            CHECK(bytes > 0 && bytes < total, "\"%s\" of %llu is %llu", text, (unsigned long long)total,
                  (unsigned long long)bytes);
    }
}

static void decisions(void) {
    for (long round = 0; round < rounds * 5; round++) {
        struct vgpu_quota_texts all;
        uint64_t card = number(UINT64_C(1) << 40) + 1;
        memset(&all, 0, sizeof all);
        all.injected = number(4) != 0;
        all.mounted = number(8) != 0;
        struct vgpu_text *texts_of[] = {&all.limit, &all.memory, &all.fraction, &all.environment[0]};
        for (int i = 0; i < 4; i++) {
            texts_of[i]->present = number(3) != 0;
            if (texts_of[i]->present) random_text(texts_of[i]->text, 12);
        }
        struct vgpu_quota quota = vgpu_quota_decide(&all, 0, card, card);
        bool usable = quota.source != VGPU_SOURCE_UNUSABLE;
        CHECK(!all.injected || !usable || (quota.limit_bytes > 0 && quota.limit_bytes <= card),
              "injected, source %d, limit %llu of %llu", (int)quota.source, (unsigned long long)quota.limit_bytes,
              (unsigned long long)card);
        CHECK(usable || quota.why[0], "no reason");
    }
}

/* A tenant can write into his region: that may cost him his memory, but neither crash nor hang those who use it. */
static void scribbles(void) {
    char directory[] = "/tmp/core-fuzz-XXXXXX", path[64], shares[80];
    struct vgpu_region_rules rules = {false, false};
    const char *why = "";
    CHECK(mkdtemp(directory), "mkdtemp");
    snprintf(path, sizeof path, "%s/region", directory);
    snprintf(shares, sizeof shares, "%s.shares", path);
    struct vgpu_process *process = calloc(1, sizeof *process), *other = calloc(1, sizeof *other);
    CHECK(process && other, "no memory");
    CHECK(vgpu_region_join(&process->first_member, path, rules, &why) == 0, "%s", why);
    CHECK(vgpu_region_join(&other->first_member, path, rules, &why) == 0, "%s", why);
    process->member = &process->first_member;
    process->limit_bytes[0] = process->limit_bytes[15] = 1 << 30;
    unsigned char *bytes = (unsigned char *)process->member->region;
    unsigned char *share_bytes = (unsigned char *)process->member->shares;
    for (long round = 0; round < rounds / 20; round++) {
        uint64_t unused, begin = vgpu_clock_ns(CLOCK_MONOTONIC);
        for (uint64_t i = number(200); i > 0; i--) {
            bytes[number(2) ? number(6000) : number(VGPU_REGION_BYTES)] = (unsigned char)number(256);
            share_bytes[number(sizeof(struct vgpu_shares))] = (unsigned char)number(256);
        }
        if (number(4)) process->member->region->header.lock = 0;
        int device = number(2) ? 0 : 15;
        vgpu_charge_quietly(process, device, VGPU_KIND_BUFFER, number(1 << 30));
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, number(1 << 30));
        vgpu_share_publish(process, number(50), device, 4096, number(2));
        vgpu_share_open(process, number(50), &unused);
        vgpu_share_close(process, number(50));
        vgpu_used(process, device);
        vgpu_region_sweep(process->member, -1);
        struct vgpu_member third;
        if (vgpu_region_join(&third, path, rules, &why) == 0) vgpu_region_leave(&third);
        double took = (double)(vgpu_clock_ns(CLOCK_MONOTONIC) - begin) / 1e9;
        CHECK(took < 2, "round %ld took %.3f s", round, took);
    }
    unlink(path);
    unlink(shares);
    rmdir(directory);
    free(process);
    free(other);
}

int main(int argc, char **argv) {
#define CASE(name)                                                                                                     \
    {                                                                                                                  \
        #name, name                                                                                                    \
    }
    static const struct core_case cases[] = {
        CASE(texts),
        CASE(decisions),
        CASE(scribbles),
    };
    if (argc > 2) state = strtoull(argv[2], NULL, 10) * 2 + 1;
    if (argc > 3) rounds = atol(argv[3]);
    setenv("LIBCUDA_LOG_LEVEL", "0", 1);
    return core_run(cases, (int)(sizeof cases / sizeof *cases), argc, argv);
}
