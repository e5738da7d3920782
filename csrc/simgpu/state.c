/* The state file: named cards, creation, finding it, joining and leaving. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Figures of real cards; context sizes as commonly seen. Pools were measured on the H200; on the others they grow by
 * single blocks, which shows best who counts wrongly. */
static const struct {
    const char *alias;
    const char *name;
    uint32_t mib, context_mib, major, minor, multiprocessors, unified, pool_blocks;
} profiles[] = {
    {"T4", "Tesla T4", 15360, 102, 7, 5, 40, 0, 1},
    {"L4", "NVIDIA L4", 23034, 170, 8, 9, 58, 0, 1},
    {"A10", "NVIDIA A10", 23028, 260, 8, 6, 72, 0, 1},
    {"A100", "NVIDIA A100-SXM4-80GB", 81920, 418, 8, 0, 108, 0, 1},
    {"H100", "NVIDIA H100 80GB HBM3", 81559, 516, 9, 0, 132, 0, 1},
    {"H200", "NVIDIA H200", 143771, 518, 9, 0, 132, 0, 16},
    {"GB10", "NVIDIA GB10", 122504, 180, 12, 1, 48, 1, 1},
    {"MIG-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 120, 9, 0, 16, 0, 1},
};

static void make_uuid(const char *prefix, const char *name, unsigned index, char uuid[64]) {
    /* Stable from run to run, so that people and tests can rely on it: FNV-1a of what the card is. */
    uint64_t hash[2] = {UINT64_C(0xcbf29ce484222325) + index, UINT64_C(0x9ae16a3b2f90404f) - index};
    for (unsigned part = 0; part < 2; part++)
        for (const char *c = name; *c; c++)
            hash[part] = (hash[part] ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    snprintf(uuid, 64, "%s-%08x-%04x-%04x-%04x-%012llx", prefix, (unsigned)(hash[0] >> 32),
             (unsigned)(hash[0] >> 16 & 0xffff), (unsigned)(hash[0] & 0xffff), (unsigned)(hash[1] >> 48),
             (unsigned long long)(hash[1] & 0xffffffffffff));
}

static bool parse_mib(const char **text, uint64_t *bytes) {
    char *end;
    errno = 0;
    if (**text < '0' || **text > '9') return false;
    unsigned long long mib = strtoull(*text, &end, 10);
    if (errno || mib > UINT64_C(1) << 30 || (*end && (*end != ':' || !end[1]))) return false;
    *bytes = mib * SIM_MIB;
    *text = *end ? end + 1 : end;
    return true;
}

int sim_card_parse(const char *text, unsigned index, struct sim_card_config *config) {
    *config = (struct sim_card_config){
        .compute_major = 8, .multiprocessors = 64, .context_bytes = 102 * SIM_MIB, .pool_blocks = 1};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (length == 0 || length >= sizeof config->name) return -EINVAL;
    memcpy(config->name, text, length);
    bool known = false;
    for (size_t i = 0; i < sizeof profiles / sizeof profiles[0]; i++) {
        if (strcasecmp(profiles[i].alias, config->name) != 0 && strcasecmp(profiles[i].name, config->name) != 0)
            continue;
        snprintf(config->name, sizeof config->name, "%s", profiles[i].name);
        config->total_bytes = profiles[i].mib * SIM_MIB;
        config->context_bytes = profiles[i].context_mib * SIM_MIB;
        config->compute_major = profiles[i].major;
        config->compute_minor = profiles[i].minor;
        config->multiprocessors = profiles[i].multiprocessors;
        config->unified = profiles[i].unified;
        config->pool_blocks = profiles[i].pool_blocks;
        known = true;
        break;
    }
    if (!known && !colon) return -EINVAL;
    if (colon) {
        const char *rest = colon + 1;
        if (!parse_mib(&rest, &config->total_bytes)) return -EINVAL;
        if (*rest && !parse_mib(&rest, &config->context_bytes)) return -EINVAL;
        if (*rest && !parse_mib(&rest, &config->reserved_bytes)) return -EINVAL;
        if (*rest) return -EINVAL;
    }
    if (config->total_bytes <= config->reserved_bytes) return -EINVAL;
    make_uuid(strstr(config->name, "MIG ") ? "MIG" : "GPU", config->name, index, config->uuid);
    return 0;
}

static uint64_t unix_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int sim_create(const char *path, const struct sim_card_config *cards, unsigned count) {
    char temporary[PATH_MAX];
    if (count > SIM_MAX_CARDS) return -E2BIG;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%d.new", path, (int)getpid()) >= sizeof temporary)
        return -ENAMETOOLONG;
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    int error = 0;
    struct sim_state *state = MAP_FAILED;
    /* Pods run as any uid: every process may take part, whatever the umask says. */
    if (fchmod(fd, 0666) < 0 || ftruncate(fd, sizeof *state) < 0) goto fail;
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) goto fail;
    struct sim_slot self;
    sim_identify(&self);
    state->host_pid_namespace = self.pid_namespace;
    state->created_unix_ns = unix_ns();
    state->layout = SIM_LAYOUT;
    state->cards = count;
    for (unsigned i = 0; i < count; i++)
        state->card[i].config = cards[i];
    state->magic = SIM_MAGIC;
    if (rename(temporary, path) < 0) goto fail;
    munmap(state, sizeof *state);
    close(fd);
    return 0;
fail:
    error = -errno;
    if (state != MAP_FAILED) munmap(state, sizeof *state);
    close(fd);
    unlink(temporary);
    return error;
}

void sim_default_path(char path[PATH_MAX]) {
    const char *given = getenv(SIM_STATE_ENV);
    if (given && *given)
        snprintf(path, PATH_MAX, "%s", given);
    else if (access(SIM_STATE_PATH, F_OK) == 0)
        snprintf(path, PATH_MAX, "%s", SIM_STATE_PATH);
    else
        snprintf(path, PATH_MAX, "/tmp/simgpu-%u/state", (unsigned)getuid());
}

/* Makes /tmp/simgpu-<uid>/state with one T4. Two processes may do so at once: the loser's file is never seen, because
 * link(2) refuses an existing name where rename(2) would replace it. */
static int create_default(const char *path) {
    char directory[PATH_MAX], fresh[PATH_MAX + 32];
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = '\0';
    if (mkdir(directory, 0755) < 0 && errno != EEXIST) return -errno;
    struct sim_card_config card;
    sim_card_parse("T4", 0, &card);
    snprintf(fresh, sizeof fresh, "%s.first.%d", path, (int)getpid());
    int error = sim_create(fresh, &card, 1);
    if (error == 0 && link(fresh, path) < 0 && errno != EEXIST) error = -errno;
    unlink(fresh);
    return error;
}

static int open_state(const char *path, char real[PATH_MAX]) {
    char standard[PATH_MAX];
    bool standing = path == NULL;
    if (standing) sim_default_path(standard), path = standard;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && standing && !getenv(SIM_STATE_ENV)) {
        int error = create_default(path);
        if (error) return error;
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (fd < 0) return -errno;
    if (!realpath(path, real)) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int map_state(int fd, struct sim_view *view) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    if (!S_ISREG(status.st_mode) || (size_t)status.st_size != sizeof(struct sim_state)) return -EPROTO;
    void *state = mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) return -errno;
    view->state = state;
    if (view->state->magic != SIM_MAGIC || view->state->layout != SIM_LAYOUT) return -EPROTO;
    if (madvise(state, sizeof(struct sim_state), MADV_DONTFORK) < 0) return -errno;
    return 0;
}

/* Claims a slot: the compare-and-swap keeps starters apart cheaply, the lock on its byte decides. */
static int claim_slot(int fd, struct sim_view *view, bool take_dead) {
    struct sim_state *state = view->state;
    for (uint32_t i = 0; i < SIM_MAX_SLOTS; i++) {
        uint32_t expected = 0;
        if (!take_dead && (__atomic_load_n(&state->slot[i].state, __ATOMIC_RELAXED) != 0 ||
                           !__atomic_compare_exchange_n(&state->slot[i].state, &expected, SIM_CLAIMED, false,
                                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)))
            continue;
        if (!sim_byte_lock(fd, i)) continue;
        view->slot = i;
        return 0;
    }
    return -EAGAIN;
}

int sim_join(struct sim_view *view, const char *path, enum sim_role role) {
    char given[PATH_MAX];
    if (path) snprintf(given, sizeof given, "%s", path), path = given; /* may lie in *view */
    *view = (struct sim_view){.role = (uint32_t)role};
    int fd = open_state(path, view->path);
    if (fd < 0) return fd;
    int error = map_state(fd, view);
    if (error) goto fail;
    view->alive = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (view->alive == MAP_FAILED) view->alive = NULL;
    if (!view->alive || madvise(view->alive, 4096, MADV_WIPEONFORK) < 0) {
        error = -errno;
        goto fail;
    }
    error = claim_slot(fd, view, false);
    if (error) {
        error = claim_slot(fd, view, true);
        if (error) goto fail;
    }
    sim_slot_enter(view);
    *view->alive = 1;
    close(fd); /* the mapping keeps the lock */
    /* Where nobody looks at the card, slots of the dead pile up: now and then a new process clears them away. */
    if (view->slot >= 64 && (view->slot & (view->slot - 1)) == 0) sim_reap(view);
    return 0;
fail:
    close(fd);
    if (view->alive) munmap(view->alive, 4096);
    if (view->state) munmap(view->state, sizeof *view->state);
    *view = (struct sim_view){0};
    return error;
}

void sim_leave(struct sim_view *view) {
    if (sim_alive(view)) {
        sim_slot_clear(view, view->slot);
        munmap(view->state, sizeof *view->state);
    }
    if (view->alive) munmap(view->alive, 4096);
    *view = (struct sim_view){0};
}

bool sim_refresh(struct sim_view *view) {
    if (sim_alive(view)) return true;
    if (!view->alive) return false; /* never joined */
    munmap(view->alive, 4096);
    view->alive = NULL;
    return sim_join(view, view->path, (enum sim_role)view->role) == 0;
}
