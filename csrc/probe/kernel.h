/* An empty kernel, compiled by the driver from PTX: something to be busy with. */
#ifndef VGPU_PROBE_KERNEL_H
#define VGPU_PROBE_KERNEL_H

#include "driver.h"

struct probe_kernel {
    const struct probe_driver *driver;
    CUmodule module;
    CUfunction function;
};

/* Returns NULL, or why there is none. */
const char *probe_kernel_load(struct probe_kernel *kernel, const struct probe_driver *driver);
/* Launches it once and waits for its end. */
void probe_kernel_launch(const struct probe_kernel *kernel);

#endif
