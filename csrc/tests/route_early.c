/* What a sanitizer does at its start: it stands in for functions of libc, and looks the real ones up before its own can
 * be called. Says what it found; a call too early ends the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

static int (*real_compare)(const char *, const char *);
static int (*real_compare_some)(const char *, const char *, size_t);
static size_t (*real_length)(const char *);
static char *(*real_find)(const char *, int);
static int (*real_iterate)(int (*)(struct dl_phdr_info *, size_t, void *), void *);

#define INSTEAD(result, name, parameters, real, arguments)                                                             \
    __attribute__((visibility("default"))) result name parameters {                                                    \
        if (!(real)) abort();                                                                                          \
        return (real)arguments;                                                                                        \
    }

INSTEAD(int, strcmp, (const char *one, const char *other), real_compare, (one, other))
INSTEAD(int, strncmp, (const char *one, const char *other, size_t most), real_compare_some, (one, other, most))
INSTEAD(size_t, strlen, (const char *text), real_length, (text))
INSTEAD(char *, strchr, (const char *text, int character), real_find, (text, character))
INSTEAD(int, dl_iterate_phdr, (int (*visit)(struct dl_phdr_info *, size_t, void *), void *data), real_iterate,
        (visit, data))

static const char *const names[] = {"mmap",   "dlopen",  "dlclose", "dlsym",        "cuMemAlloc_v2",  "strcmp",
                                    "strlen", "strncmp", "strchr",  "no_such_name", "dl_iterate_phdr"};
enum { COUNT = sizeof names / sizeof *names };
static void *found[COUNT];

static void look_up(void) {
    for (int i = 0; i < COUNT; i++)
        found[i] = dlsym(RTLD_NEXT, names[i]);
    real_iterate = (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))found[COUNT - 1];
    real_compare = (int (*)(const char *, const char *))found[5];
    real_length = (size_t (*)(const char *))found[6];
    real_compare_some = (int (*)(const char *, const char *, size_t))found[7];
    real_find = (char *(*)(const char *, int))found[8];
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = look_up;

int main(void) {
    for (int i = 0; i < COUNT; i++)
        printf("%s: %s\n", names[i], found[i] ? "found" : "none");
    return 0;
}
