/* Keeps this process's own requests out while the card is asked what it holds (measure.h): what a request in flight has
 * taken is either on the card and not yet in the ledger, or the other way round.
 *
 * Requests are many and measurements few, so a request only writes into a place of its thread's own, without an atomic
 * operation, and looks whether the gate is closed; whoever closes it makes every processor see that (membarrier) and
 * then waits until all places are empty. Every wait is bounded: a request may be stuck in the driver for seconds, its
 * thread may have been cancelled there. After that the figures are taken as they are. */
#ifndef VGPU_GATE_H
#define VGPU_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VGPU_GATE_PLACES 256

struct vgpu_gate_place {
    uint64_t thread; /* 0: nobody's. Never given back: a later thread with the same address is welcome to it */
    uint32_t inside; /* requests in flight; only this thread writes it */
} __attribute__((aligned(64)));

struct vgpu_gate {
    uint32_t lock;    /* of who measures */
    uint32_t closed;  /* 1: requests wait outside */
    uint32_t waiting; /* requests outside */
    uint32_t crowd;   /* requests in flight of threads that found no place */
    bool has_barrier;
    bool stuck;           /* the last wait for requests in flight was in vain */
    uint64_t next_try_ns; /* before that, nobody tries */
    struct vgpu_gate_place places[VGPU_GATE_PLACES];
};

static inline uint64_t vgpu_gate_thread(void) {
    uint64_t thread;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(thread));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(thread));
#endif
    return thread;
}

static inline unsigned vgpu_gate_home(uint64_t thread) {
    return (unsigned)((thread >> 6) * UINT64_C(0x9E3779B97F4A7C15) >> 56);
}

/* The slow halves: without a place, and at a closed gate. */
struct vgpu_gate_place *vgpu_gate_find(struct vgpu_gate *gate, uint64_t thread);
void vgpu_gate_wait(struct vgpu_gate *gate, struct vgpu_gate_place *place);
void vgpu_gate_enter_crowd(struct vgpu_gate *gate);

struct vgpu_gate_pass {
    struct vgpu_gate *gate;
    struct vgpu_gate_place *place; /* NULL: in the crowd */
};

static inline struct vgpu_gate_pass vgpu_gate_enter(struct vgpu_gate *gate) {
    uint64_t thread = vgpu_gate_thread();
    struct vgpu_gate_place *place = &gate->places[vgpu_gate_home(thread)];
    if (__builtin_expect(__atomic_load_n(&place->thread, __ATOMIC_RELAXED) != thread, 0)) {
        place = vgpu_gate_find(gate, thread);
        if (!place) {
            vgpu_gate_enter_crowd(gate);
            return (struct vgpu_gate_pass){gate, NULL};
        }
    }
    __atomic_store_n(&place->inside, place->inside + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the other half of membarrier */
    if (__builtin_expect(__atomic_load_n(&gate->closed, __ATOMIC_ACQUIRE), 0)) vgpu_gate_wait(gate, place);
    return (struct vgpu_gate_pass){gate, place};
}

static inline void vgpu_gate_leave(struct vgpu_gate_pass *pass) {
    if (__builtin_expect(pass->place != NULL, 1))
        __atomic_store_n(&pass->place->inside, pass->place->inside - 1, __ATOMIC_RELEASE);
    else
        __atomic_fetch_sub(&pass->gate->crowd, 1, __ATOMIC_RELEASE);
}

/* Between the two no other thread has a request in flight, unless one was stuck. The caller may have one itself. */
void vgpu_gate_close(struct vgpu_gate *gate);
void vgpu_gate_open(struct vgpu_gate *gate);

/* The same for who can do without: nobody is waited for longer than a request takes; else false and it stays open. */
bool vgpu_gate_try_close(struct vgpu_gate *gate);

#endif
