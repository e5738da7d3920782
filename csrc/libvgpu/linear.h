/* What has to happen when memory goes, for those who see it go with its context. */
#ifndef VGPU_LINEAR_H
#define VGPU_LINEAR_H

#include "process.h"

/* The driver has freed what `entry` (of VGPU_POINTERS) stands for. */
void vgpu_linear_freed(struct vgpu_process *process, const struct vgpu_entry *entry);

/* The driver has closed what `import` (of VGPU_IMPORTS) stands for. */
void vgpu_import_closed(struct vgpu_process *process, const struct vgpu_entry *import);

/* The driver has freed the array that `entry` (of VGPU_ARRAYS) stands for. */
void vgpu_array_freed(struct vgpu_process *process, const struct vgpu_entry *entry);

#endif
