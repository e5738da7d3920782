#include "gate.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "syscalls.h"
#include "table.h"

#define PROBES          8
#define MOST_STUCK_NS   UINT64_C(1000000000) /* for requests in flight of which none ends */
#define AGAIN_STUCK_NS  UINT64_C(50000000)   /* the same where that was in vain just before */
#define MOST_WAIT_NS    UINT64_C(2000000000) /* for all of them */
#define MOST_TRYING_NS  UINT64_C(2000000)    /* by who can do without */
#define NEXT_TRY_NS     UINT64_C(200000000)  /* after a try in vain */
#define MOST_PASSING_NS UINT64_C(100000000)  /* for those who waited while it was closed last */
#define MOST_DELAY_NS   UINT64_C(3000000000) /* of a request: who measures was lost */

struct vgpu_gate_place *vgpu_gate_find(struct vgpu_gate *gate, uint64_t thread) {
    unsigned home = vgpu_gate_home(thread);
    for (unsigned i = 0; i < PROBES; i++) {
        struct vgpu_gate_place *place = &gate->places[(home + i) % VGPU_GATE_PLACES];
        uint64_t holder = __atomic_load_n(&place->thread, __ATOMIC_RELAXED);
        if (holder == thread) return place;
        if (holder == 0 &&
            __atomic_compare_exchange_n(&place->thread, &holder, thread, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return place;
    }
    return NULL;
}

/* Waits outside until the gate is open; `in` says that the request is in flight and `out` that it isn't. Opened gates
 * may be closed again before the request is in. */
#define WAIT(gate, in, out)                                                                                            \
    do {                                                                                                               \
        int kept_errno = errno;                                                                                        \
        uint64_t end_ns = vgpu_clock_ns(CLOCK_MONOTONIC) + MOST_DELAY_NS;                                              \
        __atomic_fetch_add(&(gate)->waiting, 1, __ATOMIC_RELAXED);                                                     \
        do {                                                                                                           \
            out;                                                                                                       \
            do                                                                                                         \
                vgpu_nap(20000);                                                                                       \
            while (__atomic_load_n(&(gate)->closed, __ATOMIC_RELAXED) && vgpu_clock_ns(CLOCK_MONOTONIC) < end_ns);     \
            in;                                                                                                        \
            __atomic_thread_fence(__ATOMIC_SEQ_CST);                                                                   \
        } while (__atomic_load_n(&(gate)->closed, __ATOMIC_SEQ_CST) && vgpu_clock_ns(CLOCK_MONOTONIC) < end_ns);       \
        __atomic_fetch_sub(&(gate)->waiting, 1, __ATOMIC_RELAXED);                                                     \
        if (vgpu_clock_ns(CLOCK_MONOTONIC) >= end_ns) __atomic_store_n(&(gate)->closed, 0, __ATOMIC_RELEASE);          \
        errno = kept_errno;                                                                                            \
    } while (0)

void vgpu_gate_wait(struct vgpu_gate *gate, struct vgpu_gate_place *place) {
    if (place->inside > 1) return; /* called from within a request, which who measures waits for */
    WAIT(gate, __atomic_store_n(&place->inside, 1, __ATOMIC_RELAXED),
         __atomic_store_n(&place->inside, 0, __ATOMIC_RELEASE));
}

void vgpu_gate_enter_crowd(struct vgpu_gate *gate) {
    __atomic_fetch_add(&gate->crowd, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gate->closed, __ATOMIC_SEQ_CST))
        WAIT(gate, __atomic_fetch_add(&gate->crowd, 1, __ATOMIC_SEQ_CST),
             __atomic_fetch_sub(&gate->crowd, 1, __ATOMIC_RELEASE));
}

static unsigned others_inside(const struct vgpu_gate *gate, uint64_t own) {
    unsigned count = __atomic_load_n(&gate->crowd, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < VGPU_GATE_PLACES; i++)
        count += __atomic_load_n(&gate->places[i].inside, __ATOMIC_ACQUIRE) &&
                 __atomic_load_n(&gate->places[i].thread, __ATOMIC_RELAXED) != own;
    return count;
}

/* As long as they become fewer: hundreds of threads on few processors take their time. */
static bool wait_until_empty(const struct vgpu_gate *gate, uint64_t own, uint64_t patience_ns) {
    uint64_t now_ns = vgpu_clock_ns(CLOCK_MONOTONIC), give_up_ns = now_ns + patience_ns, end_ns = now_ns + MOST_WAIT_NS;
    unsigned least = UINT32_MAX, count;
    for (unsigned round = 0; (count = others_inside(gate, own)) != 0; round++) {
        now_ns = vgpu_clock_ns(CLOCK_MONOTONIC);
        if (count < least) {
            least = count;
            give_up_ns = now_ns + patience_ns;
        }
        if (now_ns >= give_up_ns || now_ns >= end_ns) return false;
        if (round < 100)
            sched_yield();
        else
            vgpu_nap(20000);
    }
    return true;
}

/* A processor that hasn't seen the gate closed hasn't shown what it wrote either. Where the kernel has no membarrier
 * (before 4.14, or forbidden), time does it: a processor doesn't keep what it wrote to itself for long. */
static void make_seen(struct vgpu_gate *gate) {
    if (!gate->has_barrier)
        gate->has_barrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    if (!gate->has_barrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) vgpu_nap(100000);
}

/* Who loads one module after the other would keep out for good those who wait since the first. */
static void let_pass(const struct vgpu_gate *gate) {
    uint64_t end_ns = vgpu_clock_ns(CLOCK_MONOTONIC) + MOST_PASSING_NS;
    while (__atomic_load_n(&gate->waiting, __ATOMIC_RELAXED) && vgpu_clock_ns(CLOCK_MONOTONIC) < end_ns)
        vgpu_nap(20000);
}

/* With gate->lock. false: somebody is inside still. */
static bool shut(struct vgpu_gate *gate, uint64_t patience_ns) {
    int kept_errno = errno;
    let_pass(gate);
    __atomic_store_n(&gate->closed, 1, __ATOMIC_SEQ_CST);
    make_seen(gate);
    bool empty = wait_until_empty(gate, vgpu_gate_thread(), patience_ns);
    errno = kept_errno;
    return empty;
}

void vgpu_gate_close(struct vgpu_gate *gate) {
    vgpu_private_lock(&gate->lock);
    gate->stuck = !shut(gate, gate->stuck ? AGAIN_STUCK_NS : MOST_STUCK_NS);
}

bool vgpu_gate_try_close(struct vgpu_gate *gate) {
    if (vgpu_clock_coarse_ns() < __atomic_load_n(&gate->next_try_ns, __ATOMIC_RELAXED) ||
        !vgpu_private_trylock(&gate->lock))
        return false;
    bool empty = shut(gate, MOST_TRYING_NS);
    if (!empty) {
        __atomic_store_n(&gate->next_try_ns, vgpu_clock_coarse_ns() + NEXT_TRY_NS, __ATOMIC_RELAXED);
        vgpu_gate_open(gate);
    }
    return empty;
}

void vgpu_gate_open(struct vgpu_gate *gate) {
    __atomic_store_n(&gate->closed, 0, __ATOMIC_RELEASE);
    vgpu_private_unlock(&gate->lock);
}
