/* vgpu-probe: shows what a container sees of its GPU, and whether the share it was promised is kept. */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "text.h"
#include "vgpu/version.h"

static const char help[] =
    "vgpu-probe " VGPU_VERSION ": what this container sees of its GPU, and whether its share is kept.\n"
    "It finds the driver as any program does (libcuda.so.1, libnvidia-ml.so.1) and needs nothing else.\n"
    "\n"
    "usage: vgpu-probe COMMAND [options]\n"
    "\n"
    "  info             devices, and their memory by CUDA and by NVML\n"
    "  alloc SIZE...    takes each size in turn, says granted or refused, gives all back\n"
    "  hold SIZE...     takes each size and keeps it until SIGTERM, SIGINT, SIGHUP or --seconds\n"
    "  verify           takes the quota in steps; one step more must be refused with code 2 and nothing lost;\n"
    "                   then all is given back, and the quota can be taken once more\n"
    "  region [FILE]    prints the ledger that the container's processes share (/run/vgpu/region)\n"
    "\n"
    "  --json           one JSON document a line on stdout instead of text; sizes in bytes\n"
    "  --csv            info: only what NVML says, as nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader\n"
    "  --device N       the N-th device that CUDA shows (0)\n"
    "  --api API        take memory by: alloc (cuMemAlloc), async (cuMemAllocAsync), vmm (cuMemCreate, cuMemMap),\n"
    "                   managed (cuMemAllocManaged)\n"
    "  --route ROUTE    find the driver's functions by: getproc (cuGetProcAddress_v2), dlsym, default (RTLD_DEFAULT)\n"
    "  --count N        alloc, hold: each SIZE N times\n"
    "  --seconds S      hold: for so long\n"
    "  --busy           hold: launch an empty kernel every 10 ms meanwhile\n"
    "  --step SIZE      verify: size of a step (a sixteenth of the quota)\n"
    "  --expect SIZE    verify: the quota that was promised; another one is a broken promise\n"
    "  --whole-card     verify: go on where no quota is in force, and take the whole card\n"
    "  --help, --version\n"
    "\n"
    "SIZE is an integer in bytes, or with k, m, g, t, Ki, MiB and so on: all binary.\n"
    "\n"
    "exit code: 0 as promised, everything granted    1 a request was refused, or the promise isn't kept\n"
    "           2 wrong command line                 3 nothing could be judged: no driver, no device, cuInit refused\n";

static const struct {
    const char *name;
    int (*run)(const struct probe_options *);
    int least, most; /* operands */
} commands[] = {
    {"info", probe_info, 0, 0},
    {"alloc", probe_alloc, 1, PROBE_MAX_OPERANDS},
    {"hold", probe_hold, 1, PROBE_MAX_OPERANDS},
    {"verify", probe_verify, 0, 0},
    {"region", probe_region, 0, 1},
};

static int usage(const char *what, const char *value) {
    fprintf(stderr, "vgpu-probe: %s%s%s; see vgpu-probe --help\n", what, value == NULL ? "" : ": ",
            value == NULL ? "" : value);
    return PROBE_USAGE;
}

static int pick(const char *value, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(value, names[i]) == 0) return i;
    }
    return -1;
}

static bool number(const char *value, double least, double most, double *result) {
    char *end = NULL;
    *result = strtod(value, &end);
    return end != value && *end == '\0' && *result >= least && *result <= most;
}

enum {
    OPT_JSON = 256,
    OPT_CSV,
    OPT_DEVICE,
    OPT_API,
    OPT_ROUTE,
    OPT_COUNT,
    OPT_SECONDS,
    OPT_BUSY,
    OPT_STEP,
    OPT_EXPECT,
    OPT_WHOLE_CARD,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"json", no_argument, NULL, OPT_JSON},
    {"csv", no_argument, NULL, OPT_CSV},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"api", required_argument, NULL, OPT_API},
    {"route", required_argument, NULL, OPT_ROUTE},
    {"count", required_argument, NULL, OPT_COUNT},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"busy", no_argument, NULL, OPT_BUSY},
    {"step", required_argument, NULL, OPT_STEP},
    {"expect", required_argument, NULL, OPT_EXPECT},
    {"whole-card", no_argument, NULL, OPT_WHOLE_CARD},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

/* Takes one option over. Returns NULL, or what is wrong with its value. */
static const char *accept(struct probe_options *options, int option, const char *value) {
    static const char *const routes[] = {"getproc", "dlsym", "default"};
    double parsed = 0;
    int chosen;
    switch (option) {
    case OPT_JSON:
        options->json = true;
        return NULL;
    case OPT_CSV:
        options->csv = true;
        return NULL;
    case OPT_BUSY:
        options->busy = true;
        return NULL;
    case OPT_WHOLE_CARD:
        options->whole_card = true;
        return NULL;
    case OPT_DEVICE:
        if (!number(value, 0, 1024, &parsed)) return "not a device";
        options->device = (int)parsed;
        return NULL;
    case OPT_COUNT:
        if (!number(value, 1, 1e6, &parsed)) return "not a count";
        options->count = (uint64_t)parsed;
        return NULL;
    case OPT_SECONDS:
        return number(value, 0, 1e9, &options->seconds) ? NULL : "not a number of seconds";
    case OPT_API:
        chosen = pick(value, probe_api_names, PROBE_APIS);
        if (chosen < 0) return "no such api";
        options->api = (enum probe_api)chosen;
        return NULL;
    case OPT_ROUTE:
        chosen = pick(value, routes, 3);
        if (chosen < 0) return "no such route";
        options->route = (enum probe_route)chosen;
        return NULL;
    case OPT_STEP:
        return probe_size_parse(value, &options->step_bytes) ? NULL : "not a size";
    default:
        return probe_size_parse(value, &options->expect_bytes) ? NULL : "not a size";
    }
}

int main(int argc, char **argv) {
    struct probe_options options = {.device = 0, .seconds = -1, .count = 1};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        if (option == OPT_HELP || option == 'h') return fputs(help, stdout), PROBE_GOOD;
        if (option == OPT_VERSION) return puts("vgpu-probe " VGPU_VERSION), PROBE_GOOD;
        if (option == '?') return usage("no such option, or its value is missing", argv[optind - 1]);
        const char *wrong = accept(&options, option, optarg);
        if (wrong != NULL) return usage(wrong, optarg);
    }
    if (optind == argc) return fputs(help, stderr), PROBE_USAGE;
    const char *name = argv[optind++];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(name, commands[i].name) != 0) continue;
        options.operands = argc - optind;
        if (options.operands < commands[i].least) return usage("a SIZE is missing", NULL);
        if (options.operands > commands[i].most) return usage("too many operands", argv[argc - 1]);
        for (int n = 0; n < options.operands; n++)
            options.operand[n] = argv[optind + n];
        return commands[i].run(&options);
    }
    return usage("no such command", name);
}
