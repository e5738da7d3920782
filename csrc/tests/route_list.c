/* What cuGetProcAddress_v2 gives for each "name version flags" on standard input ("-" for the empty name): one line
 * with the object and the symbol at that address, or with the driver's status. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int get_address(const char *name, void **function, int cuda_version, uint64_t flags, int *status);

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    get_address *get = driver ? (get_address *)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    char name[128];
    int version;
    unsigned long flags;
    if (!get) return 1;
    while (scanf("%127s %d %lu", name, &version, &flags) == 3) {
        void *function = NULL;
        int status = -1;
        Dl_info info;
        int result = get(strcmp(name, "-") == 0 ? "" : name, &function, version, flags, &status);
        if (result || !function || !dladdr(function, &info)) {
            printf("none %d\n", status);
            continue;
        }
        const char *slash = strrchr(info.dli_fname, '/');
        printf("%s %s\n", slash ? slash + 1 : info.dli_fname, info.dli_saddr == function ? info.dli_sname : "?");
    }
    return 0;
}
