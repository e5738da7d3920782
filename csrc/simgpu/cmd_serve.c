/* simgpu serve: tells processes in containers apart for those who look from inside one.
 *
 * A viewer on the host finds host pids by itself. One in a container can't; so something on the host has to have
 * looked before. This does, again and again. */
#include <getopt.h>
#include <stdio.h>

#include "commands.h"

static const char help[] =
    "usage: simgpu serve [--state FILE] [--seconds S]\n"
    "\n"
    "Run on the host: finds the host's pids of processes in other pid namespaces, every 20 ms, so that NVML tells "
    "them\n"
    "also to who asks from inside a container. Until SIGTERM, SIGINT, SIGHUP or for S seconds.\n";

int cmd_serve(int argc, char **argv) {
    static const struct option options[] = {{"state", required_argument, NULL, 's'},
                                            {"seconds", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *path = NULL;
    double seconds = -1;
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') return fputs(help, stdout), 0;
        if (option == '?') return 2;
        if (option == 's') path = optarg;
        if (option == 't' && !cmd_number(optarg, 0, 1e6, &seconds)) return fputs(help, stderr), 2;
    }
    if (optind != argc) return fputs(help, stderr), 2;
    struct sim_view view = {0};
    sigset_t signals;
    cmd_block_signals(&signals);
    if (!cmd_join(&view, path, SIM_VIEWER)) return 1;
    sim_resolve_pids(&view);
    puts("serving");
    fflush(stdout);
    uint64_t end_ns = sim_now_ns() + (uint64_t)(seconds * 1e9);
    do {
        sim_resolve_pids(&view);
    } while ((seconds < 0 || sim_now_ns() < end_ns) && !cmd_sleep(&signals, 0.02));
    sim_leave(&view);
    return 0;
}
