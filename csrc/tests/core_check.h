/* The whole harness of the C unit tests: a program holds named cases, runs the one it is asked for (or all), and says
 * on stderr what didn't hold. */
#ifndef CORE_CHECK_H
#define CORE_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);                                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The thread sanitizer takes a processor for itself: fewer rounds, and more time for each. */
#if defined(__SANITIZE_THREAD__)
#define CORE_SLOW 10
#else
#define CORE_SLOW 1
#endif

/* Zeroes, for as long as the program runs. */
static inline void *core_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "no memory");
    return memory;
}

struct core_case {
    const char *name;
    void (*run)(void);
};

static inline int core_run(const struct core_case *cases, int count, int argc, char **argv) {
    int ran = 0;
    for (int i = 0; i < count; i++) {
        if (argc > 1 && strcmp(argv[1], "--list") == 0) {
            puts(cases[i].name);
            ran++;
        } else if (argc < 2 || strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            ran++;
        }
    }
    return ran ? 0 : 2;
}

#endif
