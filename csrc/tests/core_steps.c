/* A process is killed, or stopped and continued, at each step of what it does to the region; whoever comes after it
 * must find the quota whole, and wait no longer than a tenth of a second.
 *
 * Built with VGPU_WITH_STEPS, so that VGPU_STEP(name) calls vgpu_step(name) below. The steps aren't listed here: a
 * first run of the scenario records the ones that it passes. */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "charge.h"
#include "core_check.h"
#include "region.h"
#include "share.h"
#include "step.h"

#define GIB  (UINT64_C(1) << 30)
#define MOST 256

static const struct vgpu_region_rules no_rules;
static char path[128];

/* Shared by all processes of a test. */
static struct {
    int passed; /* steps of the scenario so far */
    char names[MOST][32];
} *record;
static int stop_at = -1, stop_signal; /* of this process */
static int recording;

void vgpu_step(const char *name) {
    if (!recording && stop_at < 0) return;
    int number = record->passed++;
    if (recording && number < MOST) snprintf(record->names[number], sizeof record->names[number], "%s", name);
    if (number == stop_at) raise(stop_signal);
}

static double now(void) {
    return (double)vgpu_clock_ns(CLOCK_MONOTONIC) / 1e9;
}

static struct vgpu_process *attach(uint64_t limit_bytes) {
    struct vgpu_process *process = core_memory(sizeof *process);
    const char *why = "";
    int error = vgpu_region_join(&process->first_member, path, no_rules, &why);
    CHECK(error == 0, "%s: %s", why, strerror(-error));
    process->member = &process->first_member;
    process->limit_bytes[0] = limit_bytes;
    return process;
}

/* A process that dies with bytes, and one that dies with the lock. */
static void leave_a_corpse(int with_lock) {
    pid_t child = fork();
    if (child == 0) {
        stop_at = -1;
        recording = 0;
        struct vgpu_process *process = attach(GIB);
        vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB / 4);
        vgpu_share_publish(process, 77, 0, GIB / 4, false);
        if (with_lock) CHECK(vgpu_region_lock(process->member) == 0, "lock");
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* Everything that is done to a region, by the process that will be killed. */
static void scenario(void) {
    uint64_t bytes;
    struct vgpu_process *process = attach(GIB);
    vgpu_charge(process, 0, VGPU_KIND_CONTEXT, GIB / 8);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB / 8);
    vgpu_share_publish(process, 5, 0, GIB / 8, false);
    vgpu_share_close(process, 5);
    vgpu_uncharge(process, 0, VGPU_KIND_CONTEXT, GIB / 8);
    leave_a_corpse(0);
    vgpu_share_open(process, 77, &bytes);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB - GIB / 16); /* looks for the dead */
    leave_a_corpse(1);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB / 16); /* takes the lock over */
}

/* The survivor: all of the quota, soon. */
static void all_can_be_had(struct vgpu_process *survivor, const char *step) {
    double start = now();
    while (vgpu_charge_quietly(survivor, 0, VGPU_KIND_BUFFER, GIB) != CUDA_SUCCESS)
        CHECK(now() - start < 1, "after %s: %llu bytes used", step,
              (unsigned long long)survivor->member->region->devices[0].used_bytes);
    CHECK(now() - start < 0.15, "after %s: waited %.3f s", step, now() - start);
    vgpu_uncharge(survivor, 0, VGPU_KIND_BUFFER, GIB);
    CHECK(survivor->member->region->devices[0].used_bytes == 0, "after %s: bytes left", step);
}

static void remove_files(void) {
    char other[160];
    unlink(path);
    snprintf(other, sizeof other, "%s.shares", path);
    unlink(other);
    snprintf(other, sizeof other, "%s.new", path);
    unlink(other);
    snprintf(other, sizeof other, "%s.shares.new", path);
    unlink(other);
}

static pid_t start(int at, int signal_number) {
    record->passed = 0;
    pid_t child = fork();
    if (child == 0) {
        stop_at = at;
        stop_signal = signal_number;
        recording = at < 0;
        scenario();
        _exit(0);
    }
    return child;
}

static int count_steps(void) {
    remove_files();
    waitpid(start(-1, 0), NULL, 0);
    CHECK(record->passed > 10 && record->passed < MOST, "%d steps", record->passed);
    return record->passed;
}

static void killed_at_each_step_of_a_first_start(void) {
    int steps = count_steps();
    for (int at = 0; at < steps; at++) {
        int status;
        remove_files();
        pid_t child = start(at, SIGKILL);
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status), "step %s wasn't reached", record->names[at]);
        struct vgpu_process *survivor = attach(GIB);
        all_can_be_had(survivor, record->names[at]);
        vgpu_region_leave(survivor->member);
    }
}

static void killed_at_each_step_beside_another(void) {
    count_steps();
    remove_files();
    struct vgpu_process *survivor = attach(GIB);
    waitpid(start(-1, 0), NULL, 0);
    int steps = record->passed;
    for (int at = 0; at < steps; at++) {
        int status;
        pid_t child = start(at, SIGKILL);
        waitpid(child, &status, 0);
        all_can_be_had(survivor, record->names[at]);
    }
}

static void stopped_at_each_step_makes_others_wait_100_ms_at_most(void) {
    remove_files();
    struct vgpu_process *survivor = attach(GIB);
    waitpid(start(-1, 0), NULL, 0);
    int steps = record->passed;
    for (int at = 0; at < steps; at++) {
        int status;
        pid_t child = start(at, SIGSTOP);
        waitpid(child, &status, WUNTRACED);
        if (!WIFSTOPPED(status)) continue;
        double begin = now();
        if (vgpu_charge_quietly(survivor, 0, VGPU_KIND_BUFFER, GIB / 16) == CUDA_SUCCESS)
            vgpu_uncharge(survivor, 0, VGPU_KIND_BUFFER, GIB / 16);
        CHECK(now() - begin < 0.35, "at %s: waited %.3f s", record->names[at], now() - begin);
        kill(child, SIGCONT);
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status), "at %s: status %x", record->names[at], (unsigned)status);
        all_can_be_had(survivor, record->names[at]);
    }
}

int main(int argc, char **argv) {
#define CASE(name)                                                                                                     \
    {                                                                                                                  \
        #name, name                                                                                                    \
    }
    static const struct core_case cases[] = {
        CASE(killed_at_each_step_of_a_first_start),
        CASE(killed_at_each_step_beside_another),
        CASE(stopped_at_each_step_makes_others_wait_100_ms_at_most),
    };
    char directory[] = "/tmp/core-steps-XXXXXX";
    CHECK(mkdtemp(directory), "mkdtemp");
    snprintf(path, sizeof path, "%s/region", directory);
    record = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(record != MAP_FAILED, "mmap");
    int result = core_run(cases, (int)(sizeof cases / sizeof *cases), argc, argv);
    remove_files();
    rmdir(directory);
    return result;
}
