/* dlopen and dlmopen: ways to load the driver so that its functions would be bound without us.
 *
 * RTLD_DEEPBIND puts a library's own dependencies before everything preloaded: in a capped process the flag is taken
 * off. A new namespace has none of the preloaded libraries: in a capped process our library goes in first, and as the
 * first object it comes first in that namespace's global scope, just as it does here. Where there is no limit,
 * everything stays as the program wants it. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "names.h"
#include "object.h"
#include "vgpu/paths.h"

typedef void *open_file(const char *file, int mode);
typedef void *open_in_namespace(Lmid_t namespace, const char *file, int mode);

VGPU_EXPORT open_file vgpu_route_dlopen __asm__("dlopen");
VGPU_EXPORT open_in_namespace vgpu_route_dlmopen __asm__("dlmopen");

void *vgpu_route_dlopen(const char *file, int mode) {
    open_file *libc = (open_file *)vgpu_real(VGPU_FN_dlopen);
    __attribute__((musttail)) return libc(file, mode);
}
void *vgpu_route_dlmopen(Lmid_t namespace, const char *file, int mode) {
    open_in_namespace *libc = (open_in_namespace *)vgpu_real(VGPU_FN_dlmopen);
    __attribute__((musttail)) return libc(namespace, file, mode);
}
