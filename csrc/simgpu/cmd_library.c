/* simgpu library: a copy of the simulated driver that lacks some functions, as an older driver does.
 *
 * The functions stay in the file, only their names are spoilt: whoever looks for one, by linking, by dlsym or by
 * cuGetProcAddress, finds nothing. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"

#define NAME "libcuda.so.1"

static const char help[] = "usage: simgpu library --without NAME[,NAME]... DIRECTORY\n\n"
                           "Writes a " NAME " into DIRECTORY that has none of these functions. NAMEs are as exported;\n"
                           "a name without suffix (cuMemAlloc) is also what cuGetProcAddress is asked for. The\n"
                           "original is the one beside this program.\n";

static char *load(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat status;
    char *data = NULL;
    if (file && fstat(fileno(file), &status) == 0 && (data = malloc((size_t)status.st_size))) {
        *bytes = fread(data, 1, (size_t)status.st_size, file);
        if (*bytes != (size_t)status.st_size) free(data), data = NULL;
    }
    if (file) fclose(file);
    return data;
}

static bool store(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    bool done = file && fwrite(data, 1, bytes, file) == bytes;
    return file && fclose(file) == 0 && done;
}

/* Spoils the name wherever it stands as a text of its own: in the symbol table's names, and in the table behind
 * cuGetProcAddress. Its last letter goes, so that the sorted table stays sorted. Returns how often it stood there. */
static unsigned spoil(char *library, size_t bytes, const char *name) {
    size_t length = strlen(name) + 1;
    unsigned spoilt = 0;
    for (size_t at = 1; at + length <= bytes; at++)
        if (library[at - 1] == '\0' && memcmp(library + at, name, length) == 0) {
            library[at + length - 2] = '\1';
            spoilt++;
        }
    return spoilt;
}

int cmd_library(int argc, char **argv) {
    static const struct option options[] = {
        {"without", required_argument, NULL, 'w'}, {"help", no_argument, NULL, 'h'}, {0}};
    char *without = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'h') return fputs(help, stdout), 0;
        if (option != 'w') return fputs(help, stderr), 2;
        without = optarg;
    }
    if (!without || optind + 1 != argc) return fputs(help, stderr), 2;
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof NAME);
    if (length <= 0) return perror("simgpu library: /proc/self/exe"), 1;
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, NAME);
    size_t bytes = 0;
    char *library = load(path, &bytes);
    if (!library) return perror(path), 1;
    for (char *name = strtok(without, ","); name; name = strtok(NULL, ",")) {
        if (strlen(name) > 1 && spoil(library, bytes, name) > 0) continue;
        fprintf(stderr, "simgpu library: the driver has no '%s'\n", name);
        free(library);
        return 1;
    }
    snprintf(path, sizeof path, "%s/%s", argv[optind], NAME);
    bool done = store(path, library, bytes);
    if (!done) perror(path);
    free(library);
    return done ? 0 : 1;
}
