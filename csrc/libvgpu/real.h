/* The functions that this library stands in front of, as the driver, NVML and libc have them.
 *
 * They are found by reading the loaded objects' own symbol tables (object.h), never by dlsym: dlsym is ours, and the
 * program's dlerror() and errno must stay as they are. Each address is looked for at its first use and kept; before it
 * is kept, the object is pinned, so that no dlclose() of the program's can leave us with an address into nowhere. */
#ifndef VGPU_LIBVGPU_REAL_H
#define VGPU_LIBVGPU_REAL_H

#include <stdbool.h>
#include <stddef.h>

enum vgpu_library { VGPU_DRIVER, VGPU_NVML, VGPU_LIBC };

extern void *vgpu_real_found[] __attribute__((visibility("hidden")));

/* The slow half of vgpu_real(). */
void *vgpu_real_find(unsigned int function);

/* The address behind hooks.def's `function`, NULL if its library isn't loaded or has no such symbol. Keeps errno. */
static inline void *vgpu_real(unsigned int function) {
    void *address = __atomic_load_n(&vgpu_real_found[function], __ATOMIC_RELAXED);
    return __builtin_expect(address != NULL, 1) ? address : vgpu_real_find(function);
}

/* The same where a caller wants `version` (NULL: any, as vgpu_real() does). */
void *vgpu_real_version(unsigned int function, const char *version);

/* Any other function of a library, NULL if that isn't loaded or has none of this name; not kept. In libc: for functions
 * that are rarely called, or that an older one keeps in libdl. */
void *vgpu_real_symbol(enum vgpu_library library, const char *name);

/* A look-up that succeeded without libc's help: what failed before is no longer dlerror()'s to tell. */
void vgpu_real_clear_dlerror(void);

/* Loads libnvidia-ml.so.1 for our own questions where the program hasn't; the driver is never loaded by us.
 * false if there is none. Not to be called before the program itself has called the driver. */
bool vgpu_real_load_nvml(void);

#endif
