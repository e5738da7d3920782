/* A library that looks functions up: RTLD_NEXT and RTLD_DEFAULT are relative to whoever asks. It is linked with the
 * driver, so its own reference to cuMemAlloc_v2 is bound by the dynamic linker. ROUTE_CONSTRUCTOR and ROUTE_DESTRUCTOR
 * in the environment make it ask, and say, where it found cuMemAlloc_v2 before main() and after it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "route_caller.h"

extern int cuMemAlloc_v2(void);

void *route_caller_find(const char *way, const char *name) {
    return dlsym(way[0] == 'n' ? RTLD_NEXT : RTLD_DEFAULT, name);
}

void *route_caller_bound(void) {
    return (void *)cuMemAlloc_v2;
}

int route_caller_call(void) {
    return cuMemAlloc_v2();
}

static void say(const char *when) {
    Dl_info bound, found;
    if (!getenv(when)) return;
    dladdr((void *)cuMemAlloc_v2, &bound);
    dladdr(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), &found);
    printf("%s %s\n%s %s\n", when, bound.dli_fname, when, found.dli_fname);
    cuMemAlloc_v2();
}

static __attribute__((constructor)) void start(void) {
    say("ROUTE_CONSTRUCTOR");
}

static __attribute__((destructor)) void stop(void) {
    say("ROUTE_DESTRUCTOR");
    fflush(stdout);
}
