/* Which process a slot is, also as seen from another pid namespace.
 *
 * A process in a container can't know its number on the host. A process of the host's namespace can tell it: the last
 * number of NSpid in /proc/<pid>/status is the number inside, and the start time is the same on both sides. So the
 * first viewer on the host that looks fills it in for everybody. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static ssize_t read_file(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    if (length >= 0) text[length] = '\0';
    return length;
}

/* Field 22 of /proc/<pid>/stat. The name in field 2 may hold blanks and brackets: count from the last one. */
static uint64_t start_time(const char *directory) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "%s/stat", directory);
    if (read_file(path, text, sizeof text) <= 0) return 0;
    const char *field = strrchr(text, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

void sim_identify(struct sim_slot *slot) {
    struct stat status;
    slot->pid = getpid();
    slot->pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
    slot->start_time_ticks = start_time("/proc/self");
}

/* Number inside the innermost namespace of the process. */
static int32_t inner_pid(const char *directory) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "%s/status", directory);
    if (read_file(path, text, sizeof text) <= 0) return 0;
    const char *line = strstr(text, "\nNSpid:");
    if (!line) return 0;
    const char *end = strchr(line + 1, '\n');
    const char *last = line + 7;
    for (const char *c = line + 7; *c && c != end; c++)
        if (*c == '\t' || *c == ' ') last = c + 1;
    return (int32_t)strtol(last, NULL, 10);
}

static unsigned count_unknown(const struct sim_state *state) {
    unsigned unknown = 0;
    for (uint32_t i = 0; i < state->slots_used; i++)
        unknown += state->slot[i].state == SIM_PROGRAM && state->slot[i].host_pid == 0;
    return unknown;
}

static void match(struct sim_state *state, const char *directory, int32_t pid) {
    int32_t inside = inner_pid(directory);
    uint64_t started = 0;
    for (uint32_t i = 0; i < state->slots_used; i++) {
        struct sim_slot *slot = &state->slot[i];
        if (slot->state != SIM_PROGRAM || slot->host_pid != 0 || slot->pid != inside) continue;
        if (!started) started = start_time(directory);
        if (slot->start_time_ticks == started) __atomic_store_n(&slot->host_pid, pid, __ATOMIC_RELAXED);
    }
}

unsigned sim_resolve_pids(struct sim_view *view) {
    struct sim_state *state = view->state;
    unsigned unknown = count_unknown(state);
    if (unknown == 0) return 0;
    struct sim_slot self = {0};
    sim_identify(&self);
    if (self.pid_namespace != state->host_pid_namespace) return unknown;
    DIR *processes = opendir("/proc");
    if (!processes) return unknown;
    for (struct dirent *entry; (entry = readdir(processes));) {
        char directory[32], *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid <= 0 || *end) continue;
        snprintf(directory, sizeof directory, "/proc/%ld", pid);
        match(state, directory, (int32_t)pid);
    }
    closedir(processes);
    return count_unknown(state);
}
