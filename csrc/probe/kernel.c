#include "kernel.h"

/* The oldest target that drivers of CUDA 11 to 13 all compile. */
static const char ptx[] = ".version 6.0\n"
                          ".target sm_60\n"
                          ".address_size 64\n"
                          ".visible .entry probe_idle() { ret; }\n";

const char *probe_kernel_load(struct probe_kernel *kernel, const struct probe_driver *driver) {
    kernel->driver = driver;
    if (driver->cuModuleLoadData == NULL || driver->cuModuleGetFunction == NULL || driver->cuLaunchKernel == NULL) {
        return "no kernel for --busy: this driver lacks the functions";
    }
    if (driver->cuModuleLoadData(&kernel->module, ptx) != CUDA_SUCCESS)
        return "no kernel for --busy: the driver can't load the module";
    if (driver->cuModuleGetFunction(&kernel->function, kernel->module, "probe_idle") != CUDA_SUCCESS) {
        return "no kernel for --busy: the module has no such function";
    }
    return NULL;
}

void probe_kernel_launch(const struct probe_kernel *kernel) {
    kernel->driver->cuLaunchKernel(kernel->function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    kernel->driver->cuCtxSynchronize();
}
