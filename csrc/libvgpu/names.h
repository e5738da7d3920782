/* The name table: symbols of hooks.def's CU, LIBC and NVML entries, sorted; behind them those that are only called.
 *
 * All of it is constant and free of relocations (one string pool, offsets into it): the library is mapped into every
 * process of a container, and most of them never ask. A function is named by its number, enum vgpu_function;
 * VGPU_HOOKS means none. */
#ifndef VGPU_LIBVGPU_NAMES_H
#define VGPU_LIBVGPU_NAMES_H

#include <stdbool.h>

struct vgpu_name {
    unsigned short offset;     /* of the symbol in the pool */
    unsigned char base_length; /* the base name is the symbol's beginning */
    bool per_thread;           /* meant with CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
    unsigned char library;     /* enum vgpu_library */
    int since;                 /* CUDA version; 0 for what cuGetProcAddress isn't asked for */
};

const struct vgpu_name *vgpu_name_entry(unsigned int function);
const char *vgpu_name_symbol(unsigned int function);

/* Could `name` be in the table? Two characters decide for nearly all names that programs look up. */
static inline bool vgpu_name_is_likely(const char *name) {
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'd' && name[1] == 'l') ||
           (name[0] == 'n' && name[1] == 'v');
}

/* The hooked function with this symbol, VGPU_HOOKS if there is none. */
unsigned int vgpu_name_find(const char *name);

/* The first hooked function whose symbol doesn't sort before `name`, VGPU_HOOKS if all do. */
unsigned int vgpu_name_lower_bound(const char *name);

/* What a look-up hands out: our own function of this number, which must be below VGPU_HOOKS. */
void *vgpu_name_hook(unsigned int function);

#endif
