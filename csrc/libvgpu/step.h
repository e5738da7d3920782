/* Named points at which a test build stops or kills the process (csrc/tests/core_steps.c); nothing otherwise. */
#ifndef VGPU_STEP_H
#define VGPU_STEP_H

#ifdef VGPU_WITH_STEPS
void vgpu_step(const char *name);
#define VGPU_STEP(name) vgpu_step(name)
#else
#define VGPU_STEP(name) ((void)0)
#endif

#endif
