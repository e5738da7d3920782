/* The region as several processes use it: exact under races, free of what the dead held, never blocked by them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "charge.h"
#include "core_check.h"
#include "region.h"

#define GIB (UINT64_C(1) << 30)

static const struct vgpu_region_rules no_rules;
static char path[128];

static void fresh_path(void) {
    static int number;
    char directory[] = "/tmp/core-region-XXXXXX";
    CHECK(mkdtemp(directory), "%s", strerror(errno));
    snprintf(path, sizeof path, "%s/region%d", directory, number++);
}

static void remove_files(void) {
    char shares[160];
    snprintf(shares, sizeof shares, "%s.shares", path);
    unlink(shares);
    unlink(path);
}

static void remove_path(void) {
    char directory[128];
    remove_files();
    strcpy(directory, path);
    *strrchr(directory, '/') = '\0';
    rmdir(directory);
}

/* A process's state as after attaching, with one device. */
static struct vgpu_process *attach(uint64_t limit_bytes) {
    struct vgpu_process *process = core_memory(sizeof *process);
    const char *why = "";
    CHECK(process, "no memory");
    int error = vgpu_region_join(&process->first_member, path, no_rules, &why);
    CHECK(error == 0, "%s: %s", why, strerror(-error));
    process->member = &process->first_member;
    process->member->region->header.device_count = 1;
    strcpy(process->member->region->devices[0].uuid, "GPU-test");
    process->limit_bytes[0] = limit_bytes;
    return process;
}

static uint64_t used(const struct vgpu_process *process) {
    return process->member->region->devices[0].used_bytes;
}

static double now(void) {
    return (double)vgpu_clock_ns(CLOCK_MONOTONIC) / 1e9;
}

static void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    return memory;
}

/* ---- opening ---- */

static void created_region_is_open_to_every_uid(void) {
    struct stat status;
    umask(077);
    fresh_path();
    attach(GIB);
    CHECK(stat(path, &status) == 0 && (status.st_mode & 07777) == 0666, "mode %o", (unsigned)status.st_mode);
    CHECK(status.st_blocks * 512 >= (long)VGPU_REGION_BYTES, "blocks not reserved: %ld", (long)status.st_blocks);
    CHECK(umask(0) == 077, "umask was changed");
    remove_path();
}

static int join_error(void) {
    struct vgpu_member member;
    const char *why = "";
    int error = vgpu_region_join(&member, path, no_rules, &why);
    if (error == 0)
        vgpu_region_leave(&member);
    else
        CHECK(*why, "no reason given");
    return error;
}

static void overwrite(size_t offset, uint32_t value) {
    int fd = open(path, O_RDWR);
    CHECK(pwrite(fd, &value, 4, (off_t)offset) == 4, "pwrite");
    close(fd);
}

static void file_that_is_no_region_is_refused(void) {
    fresh_path();
    attach(GIB);
    overwrite(offsetof(struct vgpu_region_header, abi), VGPU_ABI + 1);
    CHECK(join_error() == -EPROTO, "newer abi");
    overwrite(offsetof(struct vgpu_region_header, abi), VGPU_ABI - 1);
    CHECK(join_error() == -EPROTO, "older abi");
    overwrite(offsetof(struct vgpu_region_header, abi), VGPU_ABI);
    CHECK(join_error() == 0, "the right abi");
    overwrite(0, 0);
    CHECK(join_error() == -EPROTO, "magic");
    CHECK(truncate(path, 1000) == 0 && join_error() == -EPROTO, "truncated");
    unlink(path);
    CHECK(symlink("/dev/zero", path) == 0 && join_error() == -ELOOP, "link");
    unlink(path);
    CHECK(mkdir(path, 0700) == 0 && join_error() < 0, "directory");
    rmdir(path);
    CHECK(mkfifo(path, 0600) == 0 && join_error() == -EPERM, "fifo");
    remove_path();
}

/* Under the name that is used where files can't be made without one. */
static void half_made_region_of_a_killed_creator_blocks_nobody(void) {
    char fresh[160];
    fresh_path();
    snprintf(fresh, sizeof fresh, "%s.new0", path);
    close(open(fresh, O_CREAT | O_RDWR, 0600));
    double start = now();
    attach(GIB);
    CHECK(now() - start < 0.1, "waited");
    unlink(fresh);
    remove_path();
}

static void process_1025_is_refused_and_place_of_a_leaver_is_taken(void) {
    struct vgpu_member *members = core_memory((VGPU_MAX_SLOTS + 1) * sizeof *members);
    const char *why = "";
    fresh_path();
    for (int i = 0; i < VGPU_MAX_SLOTS; i++)
        CHECK(vgpu_region_join(&members[i], path, no_rules, &why) == 0, "%d: %s", i, why);
    CHECK(vgpu_region_join(&members[VGPU_MAX_SLOTS], path, no_rules, &why) == -EUSERS, "one too many");
    uint32_t slot = members[500].slot;
    vgpu_region_leave(&members[500]);
    CHECK(vgpu_region_join(&members[VGPU_MAX_SLOTS], path, no_rules, &why) == 0, "%s", why);
    CHECK(members[VGPU_MAX_SLOTS].slot == slot, "slot %u", members[VGPU_MAX_SLOTS].slot);
    remove_path();
}

/* ---- exactness ---- */

/* Both wait for the round, both ask for all of the limit, exactly one may get it. */
static void of_two_for_the_last_block_exactly_one_wins(void) {
    enum { ROUNDS = 10000 };
    struct {
        atomic_int round, wins, asked, left;
    } *game = shared_memory(sizeof *game);
    fresh_path();
    struct vgpu_process *parent = attach(GIB);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        if ((children[i] = fork()) == 0) {
            struct vgpu_process *process = attach(GIB);
            for (int round = 1; round <= ROUNDS; round++) {
                while (atomic_load(&game->round) < round)
                    sched_yield();
                bool won = vgpu_charge_quietly(process, 0, VGPU_KIND_BUFFER, GIB) == CUDA_SUCCESS;
                atomic_fetch_add(&game->wins, won);
                atomic_fetch_add(&game->asked, 1);
                while (atomic_load(&game->asked) < 2 * round)
                    sched_yield();
                if (won) vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, GIB);
                atomic_fetch_add(&game->left, 1);
            }
            _exit(0);
        }
    }
    for (int round = 1; round <= ROUNDS; round++) {
        atomic_store(&game->round, round);
        while (atomic_load(&game->left) < 2 * round)
            sched_yield();
        CHECK(atomic_load(&game->wins) == round, "round %d: %d wins", round, atomic_load(&game->wins));
    }
    for (int i = 0; i < 2; i++)
        waitpid(children[i], NULL, 0);
    CHECK(used(parent) == 0, "%llu bytes left", (unsigned long long)used(parent));
    remove_path();
}

static void *storm(void *data) {
    struct vgpu_process *process = data;
    for (int i = 0; i < 20000; i++)
        if (vgpu_charge_quietly(process, 0, VGPU_KIND_BUFFER, 4096) == CUDA_SUCCESS)
            vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, 4096);
    return NULL;
}

static void threads_leave_no_byte_behind(void) {
    pthread_t threads[8];
    fresh_path();
    struct vgpu_process *process = attach(5 * 4096);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, storm, process);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    CHECK(used(process) == 0 && process->member->region->devices[0].peak_used_bytes <= 5 * 4096, "%llu",
          (unsigned long long)used(process));
    remove_path();
}

static void hundred_processes_leave_no_byte_behind(void) {
    fresh_path();
    struct vgpu_process *parent = attach(50 * 4096);
    for (int i = 0; i < 100; i++)
        if (fork() == 0) {
            struct vgpu_process *process = attach(50 * 4096);
            for (int round = 0; round < 300; round++)
                if (vgpu_charge_quietly(process, 0, VGPU_KIND_BUFFER, 4096) == CUDA_SUCCESS)
                    vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, 4096);
            _exit(0);
        }
    while (wait(NULL) > 0) {
    }
    CHECK(used(parent) == 0 && parent->member->region->devices[0].peak_used_bytes <= 50 * 4096, "%llu",
          (unsigned long long)used(parent));
    remove_path();
}

/* ---- the dead ---- */

static void killed_at_any_moment_leaves_nothing_behind(void) {
    double longest = 0;
    fresh_path();
    struct vgpu_process *parent = attach(GIB);
    srand(7);
    for (int round = 0; round < 3000 / CORE_SLOW; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct vgpu_process *process = attach(GIB);
            for (;;) {
                vgpu_charge_quietly(process, 0, (enum vgpu_kind)(rand() % VGPU_KINDS), GIB / 4);
                if (rand() % 3) vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, GIB / 4);
            }
        }
        usleep((useconds_t)(rand() % 1500));
        kill(child, SIGKILL);
        if (round % 2) /* a zombie holds nothing either */
            waitpid(child, NULL, 0);
        double start = now(), waited;
        while (vgpu_charge_quietly(parent, 0, VGPU_KIND_BUFFER, GIB) != CUDA_SUCCESS)
            CHECK(now() - start < 2 * CORE_SLOW, "round %d: used %llu", round, (unsigned long long)used(parent));
        waited = now() - start;
        longest = waited > longest ? waited : longest;
        vgpu_uncharge(parent, 0, VGPU_KIND_BUFFER, GIB);
        CHECK(used(parent) == 0, "round %d: %llu", round, (unsigned long long)used(parent));
        waitpid(child, NULL, 0);
    }
    fprintf(stderr, "longest wait %.1f ms\n", longest * 1e3);
    remove_path();
}

static void child_that_forked_holds_nothing_of_its_parent(void) {
    int pipes[2];
    pid_t *grandchild = shared_memory(sizeof *grandchild);
    fresh_path();
    struct vgpu_process *watcher = attach(GIB);
    CHECK(pipe(pipes) == 0, "pipe");
    pid_t parent = fork();
    if (parent == 0) {
        struct vgpu_process *process = attach(GIB);
        CHECK(vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB) == CUDA_SUCCESS, "charge");
        pid_t forked = fork();
        if (forked == 0) { /* lives on, like a daemon */
            pause();
            _exit(0);
        }
        *grandchild = forked;
        CHECK(write(pipes[1], "x", 1) == 1, "write");
        pause();
    }
    char byte;
    CHECK(read(pipes[0], &byte, 1) == 1, "read");
    CHECK(vgpu_charge_quietly(watcher, 0, VGPU_KIND_BUFFER, GIB) != CUDA_SUCCESS, "the parent lives");
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    usleep(1000);
    CHECK(vgpu_charge_quietly(watcher, 0, VGPU_KIND_BUFFER, GIB) == CUDA_SUCCESS, "used %llu",
          (unsigned long long)used(watcher));
    CHECK(*grandchild > 0, "no grandchild");
    kill(*grandchild, SIGKILL);
    remove_path();
}

static void behind_a_stopped_owner_requests_are_refused_after_100_ms(void) {
    int pipes[2];
    fresh_path();
    struct vgpu_process *parent = attach(GIB);
    CHECK(vgpu_charge(parent, 0, VGPU_KIND_BUFFER, GIB / 2) == CUDA_SUCCESS, "charge");
    CHECK(pipe(pipes) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        struct vgpu_process *process = attach(GIB);
        CHECK(vgpu_region_lock(process->member) == 0, "lock");
        CHECK(write(pipes[1], "x", 1) == 1, "write");
        raise(SIGSTOP);
        vgpu_region_unlock(process->member);
        pause();
    }
    char byte;
    CHECK(read(pipes[0], &byte, 1) == 1, "read");
    usleep(10000);
    double start = now();
    CHECK(vgpu_charge_quietly(parent, 0, VGPU_KIND_BUFFER, 4096) == CUDA_ERROR_OUT_OF_MEMORY, "granted");
    CHECK(now() - start < 0.5, "waited %.3f s", now() - start);
    vgpu_uncharge(parent, 0, VGPU_KIND_BUFFER, GIB / 2); /* is owed */
    CHECK(used(parent) == GIB / 2, "stolen");
    kill(child, SIGCONT);
    while (vgpu_charge_quietly(parent, 0, VGPU_KIND_BUFFER, GIB) != CUDA_SUCCESS)
        CHECK(now() - start < 5, "used %llu", (unsigned long long)used(parent));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    remove_path();
}

static void lock_of_a_dead_owner_is_taken_over(void) {
    fresh_path();
    struct vgpu_process *parent = attach(GIB);
    pid_t child = fork();
    if (child == 0) {
        struct vgpu_process *process = attach(GIB);
        vgpu_region_lock(process->member);
        process->member->region->devices[0].used_bytes = 12345; /* half of an update */
        _exit(0);
    }
    waitpid(child, NULL, 0);
    double start = now();
    CHECK(vgpu_charge(parent, 0, VGPU_KIND_BUFFER, GIB) == CUDA_SUCCESS, "used %llu", (unsigned long long)used(parent));
    CHECK(now() - start < 0.1, "waited %.3f s", now() - start);
    remove_path();
}

/* ---- the file under running processes ---- */

static void bytes_follow_into_a_region_that_replaced_the_old_one(void) {
    fresh_path();
    struct vgpu_process *process = attach(GIB);
    CHECK(vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB / 2) == CUDA_SUCCESS, "charge");
    CHECK(vgpu_charge(process, 0, VGPU_KIND_CONTEXT, 4096) == CUDA_SUCCESS, "charge");
    CHECK(vgpu_region_is_current(process->member), "current");
    unlink(path);
    CHECK(!vgpu_region_is_current(process->member), "removed");
    vgpu_charge_follow_region(process);
    CHECK(!process->stale && vgpu_region_is_current(process->member), "attached anew");
    CHECK(used(process) == GIB / 2 + 4096, "used %llu", (unsigned long long)used(process));
    CHECK(strcmp(process->member->region->devices[0].uuid, "GPU-test") == 0, "device");
    vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, GIB / 2);
    CHECK(used(process) == 4096, "used %llu", (unsigned long long)used(process));
    remove_path();
}

static void without_a_region_nothing_is_granted_and_frees_still_count(void) {
    char directory[128];
    fresh_path();
    struct vgpu_process *process = attach(GIB);
    CHECK(vgpu_charge(process, 0, VGPU_KIND_BUFFER, GIB / 2) == CUDA_SUCCESS, "charge");
    strcpy(directory, path);
    *strrchr(directory, '/') = '\0';
    remove_files();
    CHECK(rmdir(directory) == 0, "rmdir");
    vgpu_charge_follow_region(process);
    CHECK(process->stale, "stale");
    CHECK(vgpu_charge(process, 0, VGPU_KIND_BUFFER, 4096) == CUDA_ERROR_OUT_OF_MEMORY, "granted");
    vgpu_uncharge(process, 0, VGPU_KIND_BUFFER, GIB / 4);
    CHECK(mkdir(directory, 0700) == 0, "mkdir");
    vgpu_charge_follow_region(process);
    CHECK(!process->stale && used(process) == GIB / 4, "used %llu", (unsigned long long)used(process));
    CHECK(vgpu_charge(process, 0, VGPU_KIND_BUFFER, 4096) == CUDA_SUCCESS, "refused");
    remove_path();
}

static void refusals_are_counted(void) {
    fresh_path();
    struct vgpu_process *process = attach(GIB);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, 2 * GIB);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, 3 * GIB);
    vgpu_charge(process, 0, VGPU_KIND_BUFFER, UINT64_MAX);
    const struct vgpu_region_device *device = &process->member->region->devices[0];
    CHECK(device->refusals == 3 && device->refused_largest_bytes == UINT64_MAX && device->refused_last_unix_ns,
          "%llu refusals", (unsigned long long)device->refusals);
    CHECK(used(process) == 0, "charged");
    remove_path();
}

int main(int argc, char **argv) {
#define CASE(name)                                                                                                     \
    {                                                                                                                  \
        #name, name                                                                                                    \
    }
    static const struct core_case cases[] = {
        CASE(created_region_is_open_to_every_uid),
        CASE(file_that_is_no_region_is_refused),
        CASE(half_made_region_of_a_killed_creator_blocks_nobody),
        CASE(process_1025_is_refused_and_place_of_a_leaver_is_taken),
        CASE(of_two_for_the_last_block_exactly_one_wins),
        CASE(threads_leave_no_byte_behind),
        CASE(hundred_processes_leave_no_byte_behind),
        CASE(killed_at_any_moment_leaves_nothing_behind),
        CASE(behind_a_stopped_owner_requests_are_refused_after_100_ms),
        CASE(lock_of_a_dead_owner_is_taken_over),
        CASE(bytes_follow_into_a_region_that_replaced_the_old_one),
        CASE(without_a_region_nothing_is_granted_and_frees_still_count),
        CASE(refusals_are_counted),
        CASE(child_that_forked_holds_nothing_of_its_parent),
    };
    return core_run(cases, (int)(sizeof cases / sizeof *cases), argc, argv);
}
