/*
 * A static program that holds memory of the card: no dynamic linker, so no preload file and no library in it.
 *
 *     static-hold BYTES
 *
 * The simulated driver is part of it, as a static program of a tenant that speaks to the real one's device file would
 * bring its own.
 */
#include <cuda_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int index);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);

int main(int count, char **words) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    if (count != 2) {
        fprintf(stderr, "usage: %s BYTES\n", words[0]);
        return 2;
    }
    CUresult code = cuInit(0);
    code = code ? code : cuDeviceGet(&device, 0);
    code = code ? code : cuCtxCreate_v2(&context, 0, device);
    code = code ? code : cuMemAlloc_v2(&address, strtoull(words[1], NULL, 10));
    if (code) {
        fprintf(stderr, "%s bytes: %d\n", words[1], (int)code);
        return 1;
    }
    printf("held %s\n", words[1]);
    fflush(stdout);
    for (;;) {
        pause();
    }
}
