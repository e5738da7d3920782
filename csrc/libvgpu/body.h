/* How a hook's body begins: with the attached process, or with the answer that needs none. */
#ifndef VGPU_BODY_H
#define VGPU_BODY_H

#include "charge.h"
#include "context.h"
#include "hooks.h"

/* Refused: nothing is allocated. Not attached (before cuInit, in a forked child): the driver's own answer. */
#define VGPU_BEGIN(process, forward)                                                                                   \
    struct vgpu_process *process = vgpu_enter();                                                                       \
    if (__builtin_expect(process->state != VGPU_READY, 0))                                                             \
    return process->state == VGPU_REFUSED ? CUDA_ERROR_NOT_PERMITTED : (forward)

/* For what gives back: without a process there is nothing to account for. */
#define VGPU_BEGIN_RELEASE(process, forward)                                                                           \
    struct vgpu_process *process = vgpu_enter_quietly();                                                               \
    if (__builtin_expect(!process || process->state != VGPU_READY, 0)) return (forward)

#endif
