/* Arrays, as copies and external memory use them. */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "memory.h"

/* What was mapped into a sparse array that dies (vmm_map.c). Locked. */
void tiles_forget_locked(const void *resource);
/* Where an array's data lies; false for no array. A sparse one has no data: *slice is 0. */
bool array_data(CUarray array, CUdeviceptr *base, uint64_t *pitch, uint64_t *slice);

#endif
