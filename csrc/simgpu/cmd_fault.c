/* simgpu fault: lets calls of the driver or of NVML fail, or a symbol be missing. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: simgpu fault [--state FILE] CALL NTH CODE\n"
    "       simgpu fault [--state FILE] --list | --clear\n"
    "\n"
    "Lets the NTH call of the function CALL (an exported name, such as cuMemAlloc_v2 or nvmlInit_v2) fail with CODE,\n"
    "counted from now over all processes of the state. NTH is a number (3), a range (1-5) or open-ended (2-).\n"
    "CODE is a CUresult or an nvmlReturn_t as a number, or \"missing\": the driver then hasn't such a function at "
    "all.\n"
    "\n"
    "  --list    the faults in force, with the calls counted so far\n"
    "  --clear   takes all faults back\n";

/* "3", "1-5", "2-" */
static bool parse_range(const char *text, uint32_t *first, uint32_t *last) {
    char *end = NULL;
    unsigned long from = strtoul(text, &end, 10);
    unsigned long to = from;
    if (end == text || *text == '-' || from == 0 || from > UINT32_MAX) return false;
    if (*end == '-' && end[1] == '\0') {
        to = UINT32_MAX;
    } else if (*end == '-') {
        to = strtoul(end + 1, &end, 10);
        if (*end != '\0') return false;
    } else if (*end != '\0') {
        return false;
    }
    if (to < from || to > UINT32_MAX) return false;
    *first = (uint32_t)from;
    *last = (uint32_t)to;
    return true;
}

static bool parse_code(const char *text, int32_t *code) {
    char *end = NULL;
    if (strcmp(text, "missing") == 0) {
        *code = SIM_FAULT_MISSING;
        return true;
    }
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 1 || value > INT32_MAX) return false;
    *code = (int32_t)value;
    return true;
}

static void list(const struct sim_state *state) {
    for (uint32_t i = 0; i < state->faults && i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &state->fault[i];
        printf("%s %u-%u code %d, %u calls so far\n", fault->call, fault->first, fault->last, fault->code,
               fault->calls);
    }
}

static int wrong(const char *what, const char *value) {
    fprintf(stderr, "simgpu fault: %s: %s; see simgpu fault --help\n", what, value);
    return 2;
}

int cmd_fault(int argc, char **argv) {
    static const struct option options[] = {{"state", required_argument, NULL, 's'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"clear", no_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *path = NULL;
    int action = 0;
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') return fputs(help, stdout), 0;
        if (option == '?') return 2;
        if (option == 's') path = optarg;
        if (option == 'l' || option == 'c') action = option;
    }
    uint32_t first = 0;
    uint32_t last = 0;
    int32_t code = 0;
    if (action == 0) {
        if (argc - optind != 3) return fputs(help, stderr), 2;
        if (!parse_range(argv[optind + 1], &first, &last)) return wrong("not a call's number", argv[optind + 1]);
        if (!parse_code(argv[optind + 2], &code)) return wrong("not a code", argv[optind + 2]);
    } else if (argc != optind) {
        return wrong("too many operands", argv[optind]);
    }
    struct sim_view view = {0};
    if (!cmd_join(&view, path, SIM_VIEWER)) return 1;
    int error = 0;
    if (action == 'l') list(view.state);
    if (action == 'c') sim_fault_clear(&view);
    if (action == 0) error = sim_fault_add(&view, argv[optind], first, last, code);
    sim_leave(&view);
    if (error != 0) fprintf(stderr, "simgpu fault: %s: %s\n", argv[optind], strerror(-error));
    return error != 0;
}
