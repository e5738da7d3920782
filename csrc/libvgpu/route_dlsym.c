/* dlsym and dlvsym: the driver's and NVML's functions come out as our hooks, every other name as libc has it.
 *
 * libc tells RTLD_NEXT, RTLD_DEFAULT and the namespace by the address that its function will return to. So what isn't
 * ours is left to it by a tail call, with the stack as the program left it; dlsym and dlvsym share one type for that
 * (dlsym never looks at the third argument).
 *
 * A name is ours if what the program would have got lies in the real driver. A function that this driver lacks is
 * absent although we define it, and another object's function of the same name stays that object's. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "hooks.h"
#include "names.h"
#include "object.h"

typedef void *lookup(void *handle, const char *name, const char *version);

VGPU_EXPORT lookup vgpu_route_dlsym __asm__("dlsym");
VGPU_EXPORT lookup vgpu_route_dlvsym __asm__("dlvsym");

/* No object has this version: libc's dlvsym then passes over our own definition and fails in its own words. */
static const char no_version[] = "none";

struct question {
    unsigned int function;
    void *handle;
    const char *name;
    const char *version; /* NULL for dlsym */
    const void *caller;
    void *real; /* what the driver has under this name and version, or NULL */
    lookup *libc;
    bool absent; /* set: the answer that libc would give is our own definition, but there is nothing behind it */
};

static void *nothing(void *handle, const char *name, const char *version) {
    (void)handle, (void)name, (void)version;
    return NULL;
}

/* libc's own; `nothing` only where libc can't be read. */
static lookup *libc_lookup(enum vgpu_function function) {
    lookup *found = (lookup *)vgpu_real(function);
    return found ? found : nothing;
}

/* Is `address` the real function, or that of another copy of the driver? */
static bool is_real(const struct question *question, const void *address) {
    struct vgpu_object object;
    if (address == question->real) return true;
    if (!vgpu_object_by_address(address, &object)) return false;
    switch (vgpu_name_entry(question->function)->library) {
    case VGPU_LIBC:
        return strcmp(object.soname, "libc.so.6") == 0 || strcmp(object.soname, "libdl.so.2") == 0;
    case VGPU_NVML:
        return strcmp(object.soname, NVML_SONAME) == 0;
    default:
        return strcmp(object.soname, CUDA_SONAME) == 0;
    }
}

/* What comes after us in the global scope, for a name with nothing behind our definition. */
static void *after_us(struct question *question) {
    void *address = question->libc(RTLD_NEXT, question->name, question->version);
    question->absent = !address;
    return address;
}

static void *ours(struct question *question) {
    return question->real ? vgpu_name_hook(question->function) : after_us(question);
}

static void *by_handle(struct question *question) {
    void *address = question->libc(question->handle, question->name, question->version);
    if (address == vgpu_name_hook(question->function) || (address && is_real(question, address))) return ours(question);
    return address;
}

/* The global scope comes first for every caller, and we stand in it: libc finds us, or what stands before us. */
static void *by_default(struct question *question) {
    void *address = question->libc(RTLD_DEFAULT, question->name, question->version);
    if (address && address != vgpu_name_hook(question->function) && !is_real(question, address)) return address;
    return ours(question);
}

struct walk {
    const struct question *question;
    bool past_caller, past_us;
    void *between; /* first definition in an object after the caller's and before us */
};

static bool walk_one(const struct vgpu_object *object, void *data) {
    struct walk *walk = data;
    uintptr_t caller = (uintptr_t)walk->question->caller;
    uintptr_t self = (uintptr_t)no_version;
    if (self >= object->low && self < object->high)
        walk->past_us = true;
    else if (walk->past_caller)
        walk->between = vgpu_object_symbol(object, walk->question->name, walk->question->version);
    if (caller >= object->low && caller < object->high) walk->past_caller = true;
    return walk->past_us || walk->between;
}

/* By name. Objects that were preloaded before us keep their order among each other; a caller after us gets what libc
 * says only if the driver has nothing: there we don't stand in the way. */
static void *by_next(struct question *question, bool *leave_to_libc) {
    struct walk walk = {.question = question};
    vgpu_object_each(walk_one, &walk);
    if (walk.between) return walk.between;
    if (walk.past_caller) return ours(question);
    *leave_to_libc = !question->real;
    return question->real ? vgpu_name_hook(question->function) : NULL;
}

/* True with the answer; false if libc is to be asked, by the tail call, with `version` changed to no_version where
 * our own definition must not be found. */
static bool answer(const char *name, void *handle, const char **version, const void *caller, void **address) {
    struct question question = {.function = name ? vgpu_name_find(name) : VGPU_HOOKS, .handle = handle, .name = name};
    bool leave_to_libc = false;
    if (question.function == VGPU_HOOKS) return false;
    question.version = *version;
    question.caller = caller;
    question.real = vgpu_real_version(question.function, *version);
    question.libc = libc_lookup(*version ? VGPU_FN_dlvsym : VGPU_FN_dlsym);
    if (handle == RTLD_NEXT)
        *address = by_next(&question, &leave_to_libc);
    else if (handle == RTLD_DEFAULT)
        *address = by_default(&question);
    else
        *address = by_handle(&question);
    if (question.absent) *version = no_version;
    return !leave_to_libc && !question.absent;
}

void *vgpu_route_dlsym(void *handle, const char *name, const char *unused) {
    const char *version = NULL;
    void *address;
    (void)unused;
    if (answer(name, handle, &version, __builtin_return_address(0), &address)) return address;
    lookup *libc = libc_lookup(version ? VGPU_FN_dlvsym : VGPU_FN_dlsym);
    __attribute__((musttail)) return libc(handle, name, version);
}

void *vgpu_route_dlvsym(void *handle, const char *name, const char *version) {
    void *address;
    if (version && answer(name, handle, &version, __builtin_return_address(0), &address)) return address;
    lookup *libc = libc_lookup(VGPU_FN_dlvsym);
    __attribute__((musttail)) return libc(handle, name, version);
}
