/* dlerror() and errno around calls into the driver and look-ups. The output must be the same with the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void say(const char *what) {
    const char *message = dlerror();
    const char *slash = message ? strrchr(message, '/') : NULL;
    printf("%s: %s (errno %d)\n", what, slash ? slash : message ? message : "none", errno);
    errno = 0;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    if (!driver || !libc) return 1;
    int (*call)(void) = (int (*)(void))dlsym(driver, "cuMemAlloc_v2");
    errno = 0;
    dlsym(libc, "no_such_function");
    call();
    say("missing in libc, then a call");
    dlsym(driver, "cuNoSuchFunction");
    call();
    say("missing in the driver, then a call");
    dlsym(driver, "cuGreenCtxCreate");
    say("hooked, but missing in this driver");
    dlsym(driver, "cuMemAlloc_v2");
    say("found");
    dlsym(driver, "cuNoSuchFunction");
    if (dlsym(RTLD_NEXT, "cuMemAlloc_v2")) say("found as the next one after a failure");
    dlsym(driver, "cuNoSuchFunction");
    if (dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")) say("found as the default one after a failure");
    dlvsym(libc, "dlsym", "NO_SUCH_VERSION");
    say("dlsym of a version that libc doesn't have");
    dlvsym(driver, "cuMemAlloc_v2", "NO_SUCH_VERSION");
    say("a version that the driver doesn't have");
    dlvsym(RTLD_NEXT, "dlsym", "NO_SUCH_VERSION");
    dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "NO_SUCH_VERSION");
    say("a version that nobody has");
    int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(driver, "cuInit");
    init(0);
    say("the driver started");
    errno = EDOM;
    dlsym(RTLD_NEXT, "strlen");
    dlsym(driver, "cuInit");
    call();
    say("nothing failed");
    dlopen("/no/such/file.so", RTLD_NOW | RTLD_DEEPBIND);
    say("no such file");
    dlmopen(LM_ID_BASE, "/no/such/file.so", RTLD_NOW);
    say("no such file in this namespace");
    return 0;
}
