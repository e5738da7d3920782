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

/* Is `object` the one whose functions of this name are ours to stand in for? Not only the driver that we call: another
 * copy of it, under another path, is led here too. */
static bool is_hooked_object(const struct question *question, const struct vgpu_object *object) {
    switch (vgpu_name_entry(question->function)->library) {
    case VGPU_LIBC:
        return vgpu_compare(object->soname, "libc.so.6") == 0 || vgpu_compare(object->soname, "libdl.so.2") == 0;
    case VGPU_NVML:
        return vgpu_compare(object->soname, NVML_SONAME) == 0;
    default:
        return vgpu_compare(object->soname, CUDA_SONAME) == 0;
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

/* The handle is of another namespace (dlmopen): our copy there answers; without one the answer is libc's. */
static void *in_other_namespace(const struct question *question, void *address) {
    int (*info)(void *, int, void *) = (int (*)(void *, int, void *))vgpu_real_symbol(VGPU_LIBC, "dlinfo");
    int (*close)(void *) = (int (*)(void *))vgpu_real_symbol(VGPU_LIBC, "dlclose");
    void *(*open)(Lmid_t, const char *, int) = (void *(*)(Lmid_t, const char *, int))vgpu_real(VGPU_FN_dlmopen);
    struct vgpu_object self;
    Lmid_t namespace;
    if (!info || !close || !open || info(question->handle, RTLD_DI_LMID, &namespace) ||
        !vgpu_object_by_address(no_version, &self))
        return address;
    void *copy = open(namespace, self.name, RTLD_LAZY | RTLD_NOLOAD);
    if (!copy) return address;
    const char *route = question->version ? "dlvsym" : "dlsym";
    lookup *ask = (lookup *)libc_lookup(VGPU_FN_dlsym)(copy, route, NULL);
    if (ask && ask != vgpu_route_dlsym && ask != vgpu_route_dlvsym)
        address = ask(question->handle, question->name, question->version);
    close(copy); /* opened once more above */
    return address;
}

static void *by_handle(struct question *question) {
    void *address = question->libc(question->handle, question->name, question->version);
    struct vgpu_object object;
    if (!address) return NULL;
    if (address == question->real || address == vgpu_name_hook(question->function)) return ours(question);
    if (!vgpu_object_by_address(address, &object)) return in_other_namespace(question, address);
    return is_hooked_object(question, &object) ? ours(question) : address;
}

/* The global scope comes first for every caller, and we stand in it: libc finds us, or what stands before us. */
static void *by_default(struct question *question) {
    void *address = question->libc(RTLD_DEFAULT, question->name, question->version);
    struct vgpu_object object;
    if (address && address != vgpu_name_hook(question->function) && vgpu_object_by_address(address, &object) &&
        !is_hooked_object(question, &object))
        return address;
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
    if (*address) vgpu_real_clear_dlerror();
    if (question.absent && !*version) *version = no_version; /* one that was asked for passes over us by itself */
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
