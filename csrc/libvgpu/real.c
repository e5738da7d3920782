#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "hooks.h"
#include "names.h"
#include "object.h"

void *vgpu_real_found[VGPU_FUNCTIONS];

/* An object once found. Filled by whoever comes first; others meanwhile use a copy of their own, so nobody waits (a
 * lock would outlive its holder in a forked child). */
struct kept {
    struct vgpu_object object;
    int state; /* 0 empty, 1 being filled, 2 filled */
};

static struct kept libc, libdl, driver, nvml;

static bool recall(struct kept *kept, struct vgpu_object *object) {
    if (__atomic_load_n(&kept->state, __ATOMIC_ACQUIRE) != 2) return false;
    *object = kept->object;
    return true;
}

static void keep(struct kept *kept, const struct vgpu_object *object) {
    int empty = 0;
    if (!__atomic_compare_exchange_n(&kept->state, &empty, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    kept->object = *object;
    __atomic_store_n(&kept->state, 2, __ATOMIC_RELEASE);
}

/* Parts of libc are never unloaded. */
static void *symbol_of_libc(struct kept *kept, const char *soname, const char *symbol, const char *version) {
    struct vgpu_object object;
    if (!recall(kept, &object)) {
        if (!vgpu_object_by_soname(soname, &object)) return NULL;
        keep(kept, &object);
    }
    return vgpu_object_symbol(&object, symbol, version);
}

/* Until glibc 2.34 dlsym and its like are in libdl.so.2, which a program may do without: then it is fetched by the
 * function with which that libc opens its own plugins. */
static void *find_in_libc(const char *symbol, const char *version) {
    enum { FROM_DLOPEN = (int)0x80000000 };
    void *address = symbol_of_libc(&libc, "libc.so.6", symbol, version);
    if (!address) address = symbol_of_libc(&libdl, "libdl.so.2", symbol, version);
    if (address || __atomic_load_n(&libdl.state, __ATOMIC_RELAXED)) return address;
    void *(*fetch)(const char *, int) =
        (void *(*)(const char *, int))symbol_of_libc(&libc, "libc.so.6", "__libc_dlopen_mode", NULL);
    if (fetch && fetch("libdl.so.2", RTLD_NOW | FROM_DLOPEN))
        address = symbol_of_libc(&libdl, "libdl.so.2", symbol, version);
    return address;
}

void vgpu_real_clear_dlerror(void) {
    char *(*clear)(void) = (char *(*)(void))find_in_libc("dlerror", NULL);
    int kept_errno = errno;
    if (clear) clear();
    errno = kept_errno;
}

/* A failure leaves no message of ours behind for the program's dlerror(). */
static void *open_quietly(const char *file, int mode) {
    void *(*open)(const char *, int) = (void *(*)(const char *, int))find_in_libc("dlopen", NULL);
    void *handle = open ? open(file, mode) : NULL;
    if (!handle) vgpu_real_clear_dlerror();
    return handle;
}

/* The object with this soname, pinned: a later dlclose() by the program leaves it where it is. (The one price: at the
 * very first look into it, a message that the program hasn't fetched by dlerror() yet is gone.) */
static bool pin(struct kept *kept, const char *soname, struct vgpu_object *object) {
    if (recall(kept, object)) return true;
    if (!vgpu_object_by_soname(soname, object) || !open_quietly(soname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE))
        return false;
    keep(kept, object);
    return true;
}

static void *find_pinned(struct kept *kept, const char *soname, const char *symbol, const char *version) {
    struct vgpu_object object;
    return pin(kept, soname, &object) ? vgpu_object_symbol(&object, symbol, version) : NULL;
}

static void *find(enum vgpu_library library, const char *symbol, const char *version) {
    int kept_errno = errno;
    void *address;
    switch (library) {
    case VGPU_LIBC:
        address = find_in_libc(symbol, version);
        break;
    case VGPU_NVML:
        address = find_pinned(&nvml, NVML_SONAME, symbol, version);
        break;
    default:
        address = find_pinned(&driver, CUDA_SONAME, symbol, version);
        break;
    }
    errno = kept_errno;
    return address;
}

void *vgpu_real_find(unsigned int function) {
    void *address = find(vgpu_name_entry(function)->library, vgpu_name_symbol(function), NULL);
    if (address) __atomic_store_n(&vgpu_real_found[function], address, __ATOMIC_RELAXED);
    return address;
}

void *vgpu_real_version(unsigned int function, const char *version) {
    if (!version) return vgpu_real(function);
    return find(vgpu_name_entry(function)->library, vgpu_name_symbol(function), version);
}

void *vgpu_real_symbol(enum vgpu_library library, const char *name) {
    return find(library, name, NULL);
}

bool vgpu_real_load_nvml(void) {
    struct vgpu_object object;
    int kept_errno = errno;
    bool loaded = pin(&nvml, NVML_SONAME, &object) || open_quietly(NVML_SONAME, RTLD_LAZY | RTLD_LOCAL);
    errno = kept_errno;
    return loaded;
}
