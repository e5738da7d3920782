/* Between account_vmm.c and account_ipc.c. */
#ifndef VGPU_VMM_H
#define VGPU_VMM_H

#include "process.h"

/* With vmm_lock. The size of an imported allocation shows only when it is mapped: charges what isn't charged yet. */
CUresult vgpu_vmm_learn_size(struct vgpu_process *process, uint64_t number, uint64_t bytes);

#endif
