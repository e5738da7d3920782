/* dlopen and dlmopen: ways to load the driver such that its functions would be bound past us.
 *
 * RTLD_DEEPBIND puts a library's own dependencies before everything preloaded: in a capped process the flag is taken
 * off. A new namespace has none of the preloaded libraries: in a capped process ours goes in first, and as its first
 * object stands at the head of its global scope, just as it does here; there it is a copy of its own that joins this
 * process's slot of the region. Without a limit everything is as the program wants it.
 *
 * Both are tail calls, as dlsym is: libc finds the caller's run path by the return address. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "object.h"
#include "vgpu/paths.h"

typedef void *open_file(const char *file, int mode);
typedef void *open_in_namespace(Lmid_t namespace, const char *file, int mode);

VGPU_EXPORT open_file vgpu_route_dlopen __asm__("dlopen");
VGPU_EXPORT open_in_namespace vgpu_route_dlmopen __asm__("dlmopen");

/* Is there a limit: a container that was set up for us, or one given by hand ("0" is none). */
static bool is_capped(void) {
    static const char limit[] = "CUDA_DEVICE_MEMORY_LIMIT"; /* also with _<device> */
    int kept_errno = errno;
    bool capped = access(VGPU_QUOTA_DIR, F_OK) == 0;
    errno = kept_errno;
    for (char **variable = environ; !capped && variable && *variable; variable++) {
        const char *value = strchr(*variable, '=');
        capped = value && strncmp(*variable, limit, sizeof limit - 1) == 0 && strcmp(value, "=0") != 0;
    }
    return capped;
}

static int bound_through_us(int mode) {
    return (mode & RTLD_DEEPBIND) && is_capped() ? mode & ~RTLD_DEEPBIND : mode;
}

/* Namespaces into which our copy went first. glibc has 16 in all and one lives as long as its copy of us: so one in
 * which the program has nothing any more is taken again for its next RTLD_LM_NEWLM. By the thread that filled it only:
 * of another's nobody can tell whether its dlmopen is still under way. */
static struct seeded {
    pid_t thread; /* 0: unused */
    Lmid_t namespace;
    const struct link_map *copy;
    unsigned int objects; /* with nothing but our copy and what that needs */
} seeds[16];

static unsigned int count_objects(const struct link_map *map) {
    unsigned int count = 0;
    while (map->l_prev)
        map = map->l_prev;
    for (; map; map = map->l_next)
        count++;
    return count;
}

/* A namespace with our copy in it, or LM_ID_NEWLM with libc's own error set. */
static Lmid_t seed(open_in_namespace *libc) {
    int (*info)(void *, int, void *) = (int (*)(void *, int, void *))vgpu_real_symbol(VGPU_LIBC, "dlinfo");
    pid_t thread = (pid_t)syscall(SYS_gettid);
    struct vgpu_object self;
    struct seeded seeded = {.thread = thread};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        if (__atomic_load_n(&seeds[i].thread, __ATOMIC_ACQUIRE) == thread &&
            count_objects(seeds[i].copy) == seeds[i].objects)
            return seeds[i].namespace;
    if (!info || !vgpu_object_by_address(seeds, &self)) return LM_ID_NEWLM;
    void *copy = libc(LM_ID_NEWLM, self.name, RTLD_NOW | RTLD_LOCAL);
    if (!copy || info(copy, RTLD_DI_LMID, &seeded.namespace) || info(copy, RTLD_DI_LINKMAP, &seeded.copy))
        return LM_ID_NEWLM;
    seeded.objects = count_objects(seeded.copy);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        pid_t unused = 0;
        if (!__atomic_compare_exchange_n(&seeds[i].thread, &unused, -1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        seeds[i].namespace = seeded.namespace;
        seeds[i].copy = seeded.copy;
        seeds[i].objects = seeded.objects;
        __atomic_store_n(&seeds[i].thread, thread, __ATOMIC_RELEASE);
        break;
    }
    return seeded.namespace;
}

void *vgpu_route_dlopen(const char *file, int mode) {
    open_file *libc = (open_file *)vgpu_real(VGPU_FN_dlopen);
    if (!libc) return NULL;
    mode = bound_through_us(mode);
    __attribute__((musttail)) return libc(file, mode);
}

void *vgpu_route_dlmopen(Lmid_t namespace, const char *file, int mode) {
    open_in_namespace *libc = (open_in_namespace *)vgpu_real(VGPU_FN_dlmopen);
    if (!libc) return NULL;
    if (namespace == LM_ID_NEWLM && is_capped()) {
        namespace = seed(libc);
        if (namespace == LM_ID_NEWLM) return NULL; /* rather not opened than opened past us */
    }
    mode = bound_through_us(mode);
    __attribute__((musttail)) return libc(namespace, file, mode);
}
