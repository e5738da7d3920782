/* Says in which object a function is found by one way of looking: `route_where WAY SYMBOL [FILE]`. FILE is what is
 * opened, libcuda.so.1 unless given. Prints the object's file name, or "absent: " and dlerror()'s message. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *look_up(void *handle, const char *name);
typedef int get_address(const char *name, void **function, int cuda_version, uint64_t flags);
typedef int get_address_v2(const char *name, void **function, int cuda_version, uint64_t flags, int *status);

#ifdef __x86_64__
#define LIBC_VERSION "GLIBC_2.2.5"
#else
#define LIBC_VERSION "GLIBC_2.17"
#endif
enum { CUDA_12 = 12000 };

static const char *file = "libcuda.so.1";

static void *open_file(int mode) {
    void *handle = dlopen(file, RTLD_NOW | mode);
    if (!handle) printf("can't open: %s\n", dlerror());
    return handle;
}

static void *through(look_up *find, const char *name) {
    return find(open_file(0), name);
}

static void *get(void *lookup, const char *name, int version, uint64_t flags) {
    void *function = NULL;
    return lookup && !((get_address *)lookup)(name, &function, version, flags) ? function : NULL;
}

static void *get_v2(void *lookup, const char *name, int version, uint64_t flags) {
    void *function = NULL;
    int status = -1;
    return lookup && !((get_address_v2 *)lookup)(name, &function, version, flags, &status) ? function : NULL;
}

static void *of_caller(void *handle, const char *way, const char *name) {
    void *(*find)(const char *, const char *) =
        (void *(*)(const char *, const char *))dlsym(handle, "route_caller_find");
    void *(*bound)(void) = (void *(*)(void))dlsym(handle, "route_caller_bound");
    if (!find || !bound) return NULL;
    return strcmp(way, "bound") == 0 ? bound() : find(way, name);
}

static void *look(const char *way, const char *name) {
    if (strcmp(way, "handle") == 0) return dlsym(open_file(0), name);
    if (strcmp(way, "default") == 0) return open_file(RTLD_GLOBAL) ? dlsym(RTLD_DEFAULT, name) : NULL;
    if (strcmp(way, "next") == 0) return open_file(RTLD_GLOBAL) ? dlsym(RTLD_NEXT, name) : NULL;
    if (strcmp(way, "program") == 0) return open_file(RTLD_GLOBAL) ? dlsym(dlopen(NULL, RTLD_NOW), name) : NULL;
    if (strcmp(way, "undriven-default") == 0) return dlsym(RTLD_DEFAULT, name);
    if (strcmp(way, "undriven-next") == 0) return dlsym(RTLD_NEXT, name);
    if (strcmp(way, "undriven-program") == 0) return dlsym(dlopen(NULL, RTLD_NOW), name);
    if (strcmp(way, "dlsym-by-next") == 0) return through((look_up *)dlsym(RTLD_NEXT, "dlsym"), name);
    if (strcmp(way, "dlsym-by-default") == 0) return through((look_up *)dlsym(RTLD_DEFAULT, "dlsym"), name);
    if (strcmp(way, "dlsym-by-libc") == 0) {
        void *libc = dlopen("libc.so.6", RTLD_NOW), *libdl = dlopen("libdl.so.2", RTLD_NOW);
        void *find = dlsym(libc, "dlsym");
        return through((look_up *)(find || !libdl ? find : dlsym(libdl, "dlsym")), name);
    }
    if (strcmp(way, "dlsym-by-dlvsym") == 0) return through((look_up *)dlvsym(RTLD_NEXT, "dlsym", LIBC_VERSION), name);
    if (strcmp(way, "dlvsym-by-dlsym") == 0) {
        void *(*find)(void *, const char *, const char *) =
            (void *(*)(void *, const char *, const char *))dlsym(RTLD_DEFAULT, "dlvsym");
        return through((look_up *)find(RTLD_DEFAULT, "dlsym", LIBC_VERSION), name);
    }
    if (strcmp(way, "get") == 0) return get(dlsym(open_file(0), "cuGetProcAddress"), name, CUDA_12, 0);
    if (strcmp(way, "get-newest") == 0) return get(dlsym(open_file(0), "cuGetProcAddress"), name, 99000, 0);
    if (strcmp(way, "get-v2") == 0) return get_v2(dlsym(open_file(0), "cuGetProcAddress_v2"), name, CUDA_12, 0);
    if (strcmp(way, "get-v2-per-thread") == 0)
        return get_v2(dlsym(open_file(0), "cuGetProcAddress_v2"), name, CUDA_12, 2);
    if (strcmp(way, "get-by-get") == 0)
        return get_v2(get_v2(dlsym(open_file(0), "cuGetProcAddress_v2"), "cuGetProcAddress", CUDA_12, 0), name, CUDA_12,
                      0);
    if (strncmp(way, "caller-", 7) == 0) return of_caller(open_file(0), way + 7, name);
    if (strncmp(way, "deepbind-", 9) == 0) return of_caller(open_file(RTLD_DEEPBIND), way + 9, name);
    if (strcmp(way, "dlmopen") == 0) return dlsym(dlmopen(LM_ID_NEWLM, file, RTLD_NOW), name);
    if (strncmp(way, "dlmopen-", 8) == 0) return of_caller(dlmopen(LM_ID_NEWLM, file, RTLD_NOW), way + 8, name);
    return NULL;
}

int main(int count, char **arguments) {
    Dl_info info;
    if (count < 3) return 2;
    if (count > 3) file = arguments[3];
    void *function = look(arguments[1], arguments[2]);
    const char *message = dlerror();
    if (!function)
        printf("absent: %s\n", message ? message : "no message");
    else if (!dladdr(function, &info))
        printf("nowhere\n");
    else
        printf("%s\n", info.dli_fname);
    return 0;
}
