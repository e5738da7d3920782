/* `simgpu truth`: what each card really holds, by process. Every test judges by this. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

static void print_process(const struct sim_process *process, bool first) {
    uint64_t used = process->bytes[SIM_CONTEXT] + process->bytes[SIM_MODULE] + process->bytes[SIM_DATA];
    printf(
        "%s{\"pid\":%d,\"ns_pid\":%d,\"used_bytes\":%" PRIu64 ",\"context_bytes\":%" PRIu64 ",\"module_bytes\":%" PRIu64
        ",\"data_bytes\":%" PRIu64 ",\"contexts\":%" PRIu32 ",\"allocations\":%" PRIu64 ",\"launches\":%" PRIu64 "}",
        first ? "" : ",", process->pid, process->ns_pid, used, process->bytes[SIM_CONTEXT], process->bytes[SIM_MODULE],
        process->bytes[SIM_DATA], process->contexts, process->allocations, process->launches);
}

static void print_card(struct sim_view *view, unsigned index) {
    static struct sim_process processes[SIM_MAX_SLOTS];
    unsigned count = sim_processes(view, index, processes, SIM_MAX_SLOTS);
    const struct sim_card *card = &view->state->card[index];
    uint64_t used = __atomic_load_n(&card->used_bytes, __ATOMIC_RELAXED);
    printf("%s{\"index\":%u,\"uuid\":\"%s\",\"name\":\"%s\",\"total_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
           ",\"free_bytes\":%" PRIu64 ",\"busy_percent\":%u,\"processes\":[",
           index ? "," : "", index, card->config.uuid, card->config.name, card->config.total_bytes, used,
           card->config.total_bytes - card->config.reserved_bytes - used,
           sim_card_busy_percent(view, index, 1000000000));
    for (unsigned i = 0; i < count; i++)
        print_process(&processes[i], i == 0);
    printf("]}");
}

static int truth_usage(FILE *to) {
    fprintf(to, "usage: simgpu truth [--state FILE]\n\n"
                "JSON: {\"cards\":[{index,uuid,name,total_bytes,used_bytes,free_bytes,busy_percent,processes:[{pid,\n"
                "ns_pid,used_bytes,context_bytes,module_bytes,data_bytes,contexts,allocations,launches}]}]}\n"
                "pid is the host's number where it can be told, ns_pid the process's own. Dead processes' memory is\n"
                "given back first.\n");
    return to == stderr ? 2 : 0;
}

int cmd_truth(int argc, char **argv) {
    static const struct option options[] = {
        {"state", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *path = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case 's':
            path = optarg;
            break;
        case 'h':
            return truth_usage(stdout);
        default:
            return truth_usage(stderr);
        }
    if (optind != argc) return truth_usage(stderr);
    struct sim_view view;
    int error = sim_join(&view, path, SIM_VIEWER);
    if (error) {
        fprintf(stderr, "simgpu truth: %s: %s\n", path ? path : "default state", strerror(-error));
        return 1;
    }
    printf("{\"cards\":[");
    for (unsigned i = 0; i < view.state->cards; i++)
        print_card(&view, i);
    printf("]}\n");
    sim_leave(&view);
    return 0;
}
