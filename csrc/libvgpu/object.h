/* Loaded objects, read in place: which there are in this namespace, and where a symbol of one lies.
 *
 * Why not dlsym and dladdr: dlsym is our own symbol; before glibc 2.34 both live in libdl.so.2, which need not be
 * loaded; and both forget the message that the program may still want from dlerror(). Nothing here allocates, takes a
 * lock other than dl_iterate_phdr()'s own, or changes errno.
 *
 * And nothing here calls a function by its name: sanitizers stand in for strcmp(), dl_iterate_phdr() and hundreds more,
 * and the first thing that they do is to look up the real ones with dlsym, which is us. */
#ifndef VGPU_LIBVGPU_OBJECT_H
#define VGPU_LIBVGPU_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* strcmp(), whose name may belong to a sanitizer that looks itself up by us before it can be called. */
static inline int vgpu_compare(const char *one, const char *other) {
    while (*one && *one == *other)
        one++, other++;
    return (int)(unsigned char)*one - (int)(unsigned char)*other;
}

struct vgpu_object {
    uintptr_t base;      /* load bias */
    uintptr_t low, high; /* all its segments lie in [low, high) */
    const char *name;    /* as the dynamic linker knows it; "" for the program */
    const char *soname;  /* "" if it has none */
    const char *strings;
    const ElfW(Sym) * symbols;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
    const uint16_t *versions;
    const ElfW(Verdef) * defined_versions;
    uintptr_t defined_version_count;
};

/* Calls `visit` for each object of this namespace in load order until it returns true; whether it did. */
bool vgpu_object_each(bool (*visit)(const struct vgpu_object *, void *), void *data);

/* The first object with this soname. */
bool vgpu_object_by_soname(const char *soname, struct vgpu_object *found);

/* The object that `address` lies in. */
bool vgpu_object_by_address(const void *address, struct vgpu_object *found);

/* Fills `object` from a dynamic section alone (objects of other namespaces); low and high stay 0. */
void vgpu_object_read(struct vgpu_object *object, uintptr_t base, const ElfW(Dyn) * dynamic);

/* The address of a function that `object` defines; of the default version, or of exactly `version` if that isn't NULL
 * (a symbol without a version then fits only where the object has no version table at all, as the dynamic linker has
 * it). NULL if there is none. */
void *vgpu_object_symbol(const struct vgpu_object *object, const char *name, const char *version);

#endif
