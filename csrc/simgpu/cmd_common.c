/* What the subcommands of `simgpu` share. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"

bool cmd_join(struct sim_view *view, const char *path, enum sim_role role) {
    int error = sim_join(view, path, role);
    if (error == 0) return true;
    char standing[PATH_MAX];
    sim_default_path(standing);
    fprintf(stderr, "simgpu: %s: %s\n", path != NULL ? path : standing, strerror(-error));
    return false;
}

bool cmd_size(const char *text, uint64_t *bytes) {
    static const char units[] = "kmgt";
    char *end = NULL;
    if (!isdigit((unsigned char)*text)) return false;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    const char *unit = *end == '\0' ? NULL : strchr(units, tolower((unsigned char)*end));
    if (unit != NULL) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
    }
    if (*end != '\0' || value > UINT64_MAX >> shift) return false;
    *bytes = (uint64_t)value << shift;
    return true;
}

bool cmd_number(const char *text, double least, double most, double *number) {
    char *end = NULL;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

void cmd_block_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    sigprocmask(SIG_BLOCK, signals, NULL);
}

bool cmd_sleep(const sigset_t *signals, double seconds) {
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    return sigtimedwait(signals, NULL, &pause) > 0;
}
