/* How a hook's body begins: with the attached process, or with the answer that needs none. */
#ifndef VGPU_BODY_H
#define VGPU_BODY_H

#include "charge.h"
#include "context.h"
#include "hooks.h"

/* Refused: nothing is allocated. Not attached (before cuInit, in a forked child): the driver's own answer. */
#define VGPU_BEGIN_UNGATED(process, forward)                                                                           \
    struct vgpu_process *process = vgpu_enter();                                                                       \
    if (__builtin_expect(process->state != VGPU_READY, 0))                                                             \
    return process->state == VGPU_REFUSED ? CUDA_ERROR_NOT_PERMITTED : (forward)

/* For what gives back: without a process there is nothing to account for. */
#define VGPU_BEGIN_RELEASE_UNGATED(process, forward)                                                                   \
    struct vgpu_process *process = vgpu_enter_quietly();                                                               \
    if (__builtin_expect(!process || process->state != VGPU_READY, 0)) return (forward)

/* Until the body's end this is a request in flight (gate.h). Bodies that hold birth_lock, that is, those that measure
 * or are measured, keep each other out by that, and bodies that only ask take nothing: those are ungated. */
#define VGPU_GATED(process)                                                                                            \
    struct vgpu_gate_pass process##_pass __attribute__((cleanup(vgpu_gate_leave), unused)) =                           \
        vgpu_gate_enter(&(process)->gate)

#define VGPU_BEGIN(process, forward)                                                                                   \
    VGPU_BEGIN_UNGATED(process, forward);                                                                              \
    VGPU_GATED(process)

#define VGPU_BEGIN_RELEASE(process, forward)                                                                           \
    VGPU_BEGIN_RELEASE_UNGATED(process, forward);                                                                      \
    VGPU_GATED(process)

#endif
