/* What the library says about itself. */
#include "hooks.h"
#include "vgpu/version.h"

VGPU_EXPORT const char *vgpu_version(void);
VGPU_EXPORT int vgpu_abi(void);

const char *vgpu_version(void) {
    return VGPU_VERSION;
}

int vgpu_abi(void) {
    return VGPU_ABI;
}
