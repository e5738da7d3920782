/* Opens a library that is linked with the driver, calls the driver through it, closes it, and again; the same with the
 * driver itself. Prints what the calls returned. An address kept from the first time would lead nowhere. */
#include <dlfcn.h>
#include <stdio.h>

static int call(const char *file, const char *symbol) {
    void *handle = dlopen(file, RTLD_NOW);
    int (*function)(void) = handle ? (int (*)(void))dlsym(handle, symbol) : NULL;
    int result = function ? function() : -1;
    if (handle) dlclose(handle);
    return result;
}

int main(void) {
    for (int i = 0; i < 3; i++)
        printf("%d %d\n", call("libroute_caller.so", "route_caller_call"), call("libcuda.so.1", "cuMemAlloc_v2"));
    return 0;
}
