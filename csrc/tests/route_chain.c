/* Who is called when several libraries have a function of the driver's name: linked with the driver, prints the object
 * that this program's cuMemAlloc_v2 is in, the one that an interposer gets as the next, and what a call returns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

extern int cuMemAlloc_v2(void);

static const char *object_of(void *function) {
    static Dl_info info;
    if (!function || !dladdr(function, &info)) return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    void *(*next)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "route_wrapper_next");
    printf("%s\n", object_of((void *)found));
    printf("%s\n", next ? object_of(next()) : "no interposer");
    printf("%d\n", cuMemAlloc_v2());
    return driver ? 0 : 1;
}
