/* simgpu neighbour: another user of the card, who knows nothing of quotas. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: simgpu neighbour [--state FILE] [--card N] [--every MS] [--seconds S] SIZE\n"
    "\n"
    "Takes SIZE of the card beside a context of its own, says so, and keeps it until SIGTERM, SIGINT, SIGHUP or for S\n"
    "seconds. With --every it gives SIZE back and takes it again, changing every MS milliseconds: what doesn't fit\n"
    "meanwhile is tried again at the next change. SIZE is in bytes, or with k, m, g, t (binary).\n";

/* Takes, or gives back; what is held afterwards. */
static uint64_t change(struct sim_view *view, unsigned card, uint64_t held, uint64_t bytes) {
    if (held > 0) {
        sim_uncharge(view, card, SIM_DATA, held, -1);
        return 0;
    }
    return sim_charge(view, card, SIM_DATA, bytes, 1) == 0 ? bytes : 0;
}

static int stay(struct sim_view *view, unsigned card, uint64_t bytes, double every, double seconds) {
    uint64_t blocks = (bytes + SIM_BLOCK_BYTES - 1) / SIM_BLOCK_BYTES * SIM_BLOCK_BYTES;
    sigset_t signals;
    cmd_block_signals(&signals);
    if (sim_charge(view, card, SIM_CONTEXT, view->state->card[card].config.context_bytes, 0) != 0) {
        return fputs("simgpu neighbour: no room for a context\n", stderr), 1;
    }
    sim_count_context(view, card, 1);
    uint64_t held = change(view, card, 0, blocks);
    if (held == 0 && every <= 0) return fputs("simgpu neighbour: the card hasn't so much left\n", stderr), 1;
    printf("neighbour holds %llu bytes of card %u\n", (unsigned long long)held, card);
    fflush(stdout);
    uint64_t end_ns = sim_now_ns() + (uint64_t)(seconds * 1e9);
    double pause = every > 0 ? every / 1000 : 3600;
    for (;;) {
        double left = seconds < 0 ? pause : (double)(int64_t)(end_ns - sim_now_ns()) / 1e9;
        if (left <= 0 || cmd_sleep(&signals, left < pause ? left : pause)) return 0;
        if (every > 0) held = change(view, card, held, blocks);
    }
}

int cmd_neighbour(int argc, char **argv) {
    static const struct option options[] = {
        {"state", required_argument, NULL, 's'}, {"card", required_argument, NULL, 'c'},
        {"every", required_argument, NULL, 'e'}, {"seconds", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
    const char *path = NULL;
    double card = 0;
    double every = 0;
    double seconds = -1;
    uint64_t bytes = 0;
    bool good = true;
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') return fputs(help, stdout), 0;
        if (option == '?') return 2;
        if (option == 's') path = optarg;
        if (option == 'c') good = good && cmd_number(optarg, 0, SIM_MAX_CARDS - 1, &card);
        if (option == 'e') good = good && cmd_number(optarg, 1, 1e6, &every);
        if (option == 't') good = good && cmd_number(optarg, 0, 1e6, &seconds);
    }
    if (!good || argc - optind != 1 || !cmd_size(argv[optind], &bytes)) return fputs(help, stderr), 2;
    struct sim_view view = {0};
    if (!cmd_join(&view, path, SIM_PROGRAM)) return 1;
    int code = 1;
    if (card < view.state->cards) {
        code = stay(&view, (unsigned)card, bytes, every, seconds);
    } else {
        fprintf(stderr, "simgpu neighbour: there are %u cards\n", view.state->cards);
    }
    sim_leave(&view);
    return code;
}
