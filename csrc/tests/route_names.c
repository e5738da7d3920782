/* What libc answers for each name on standard input, in every way of looking: one line a name and way, as object and
 * offset, or as dlerror()'s message. Must be the same with the library for every name that isn't the driver's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "route_caller.h"

static void say(const char *way, const char *name, void *found) {
    const char *message = dlerror();
    Dl_info info;
    if (found && dladdr(found, &info))
        printf("%s %s %s+%lx\n", way, name, info.dli_fname, (unsigned long)((char *)found - (char *)info.dli_fbase));
    else
        printf("%s %s %s\n", way, name, found ? "somewhere" : message ? message : "null without a message");
}

int main(void) {
    void *program = dlopen(NULL, RTLD_NOW), *libm = dlopen("libm.so.6", RTLD_NOW),
         *libc = dlopen("libc.so.6", RTLD_NOW);
    char name[256];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = '\0';
        say("default", name, dlsym(RTLD_DEFAULT, name));
        say("next", name, dlsym(RTLD_NEXT, name));
        say("program", name, dlsym(program, name));
        say("libm", name, dlsym(libm, name));
        say("libc", name, dlsym(libc, name));
        say("caller's default", name, route_caller_find("default", name));
        say("caller's next", name, route_caller_find("next", name));
        say("old", name, dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5"));
        say("old next", name, dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5"));
        say("old libc", name, dlvsym(libc, name, "GLIBC_2.2.5"));
        say("unknown", name, dlvsym(libc, name, "NO_SUCH_VERSION"));
    }
    return 0;
}
