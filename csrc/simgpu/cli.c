/* `simgpu`: makes simulated cards and tells what they really hold. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"create", cmd_create, "make a fresh state file with one or more cards"},
    {"truth", cmd_truth, "print what the cards really hold, as JSON"},
    {"fault", cmd_fault, "let a call fail"},
    {"neighbour", cmd_neighbour, "take and free memory as another process on the card"},
    {"library", cmd_library, "write a driver that lacks some functions"},
    {"serve", cmd_serve, "keep telling host pids of processes in other pid namespaces"},
};

#define COMMANDS (sizeof commands / sizeof commands[0])

static void usage(FILE *to) {
    fprintf(to, "usage: simgpu COMMAND [OPTION]...\n\n");
    for (unsigned i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\nsimgpu COMMAND --help tells more. Without --state: $%s, else %s, else /tmp/simgpu-<uid>/state.\n",
            SIM_STATE_ENV, SIM_STATE_PATH);
}

static int create_usage(FILE *to) {
    fprintf(to, "usage: simgpu create --state FILE [--card CARD]... [--kernel-us N]\n\n"
                "CARD is T4 (default), L4, A10, A100, H100, H200, GB10 (unified memory), MIG-1g.10gb,\n"
                "or NAME:MIB[:CONTEXT_MIB[:RESERVED_MIB]]. --kernel-us: how long each launch keeps a card busy.\n"
                "Processes that run on an older state of the same name keep it.\n");
    return to == stderr ? 2 : 0;
}

int cmd_create(int argc, char **argv) {
    static const struct option options[] = {{"state", required_argument, NULL, 's'},
                                            {"card", required_argument, NULL, 'c'},
                                            {"kernel-us", required_argument, NULL, 'k'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct sim_card_config cards[SIM_MAX_CARDS];
    const char *path = NULL;
    unsigned count = 0;
    uint64_t kernel_us = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case 's':
            path = optarg;
            break;
        case 'c':
            if (count == SIM_MAX_CARDS || sim_card_parse(optarg, count, &cards[count]) < 0) {
                fprintf(stderr, "simgpu create: card '%s' isn't understood, or is one too many (%u)\n", optarg,
                        SIM_MAX_CARDS);
                return 2;
            }
            count++;
            break;
        case 'k':
            kernel_us = strtoull(optarg, NULL, 10);
            break;
        case 'h':
            return create_usage(stdout);
        default:
            return create_usage(stderr);
        }
    if (!path || optind != argc) return create_usage(stderr);
    if (count == 0) sim_card_parse("T4", 0, &cards[count++]);
    for (unsigned i = 0; i < count; i++)
        cards[i].kernel_ns = kernel_us * 1000;
    int error = sim_create(path, cards, count);
    if (error) fprintf(stderr, "simgpu create: %s: %s\n", path, strerror(-error));
    return error ? 1 : 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    for (unsigned i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "simgpu: no command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
