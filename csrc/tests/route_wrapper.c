/* Another product's preload library, as there are many: it wraps dlsym, getting libc's by dlvsym, and the driver's
 * cuMemAlloc_v2, getting the next one by dlsym. route_wrapper_calls counts what went through it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int route_wrapper_calls;
EXPORT void *dlsym(void *handle, const char *name);
EXPORT int cuMemAlloc_v2(void);
EXPORT void *route_wrapper_next(void);

#ifdef __x86_64__
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

void *dlsym(void *handle, const char *name) {
    void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
    if (handle != RTLD_NEXT) route_wrapper_calls++;
    return next(handle, name);
}

void *route_wrapper_next(void) {
    void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
    return next(RTLD_NEXT, "cuMemAlloc_v2");
}

int cuMemAlloc_v2(void) {
    int (*next)(void) = (int (*)(void))route_wrapper_next();
    return next ? 10000 + next() : -1;
}
