/* The state's lock: one word that names its owner, so that whoever waits behind a dead one can take over.
 *
 * A word instead of a robust mutex because 32- and 64-bit processes, several C libraries and several pid namespaces
 * share the file. Waiting is by yielding: sections are tens of nanoseconds long. */
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

bool sim_byte_lock(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_SLOT_BYTE + slot, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void sim_byte_unlock(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = SIM_SLOT_BYTE + slot, .l_len = 1};
    fcntl(fd, F_OFD_SETLK, &lock);
}

bool sim_slot_alive(struct sim_view *view, uint32_t slot) {
    if (slot == view->slot) return true;
    int fd = open(view->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return true; /* can't tell: never take from the living */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_SLOT_BYTE + slot, .l_len = 1};
    bool alive = fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
    close(fd);
    return alive;
}

static bool swap(struct sim_state *state, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&state->lock, &from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void wait_for_lock(struct sim_view *view) {
    struct sim_state *state = view->state;
    uint32_t mine = view->slot + 1;
    for (unsigned round = 0;; round++) {
        uint32_t owner = __atomic_load_n(&state->lock, __ATOMIC_RELAXED);
        if (owner == 0) {
            if (swap(state, 0, mine)) return;
            continue;
        }
        if (round < 100) {
            sched_yield();
            continue;
        }
        /* Another thread of this process may hold it too; it is alive. */
        if (round % 32 == 0 && owner != mine && !sim_slot_alive(view, owner - 1) && swap(state, owner, mine)) {
            sim_recount(state);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

void sim_lock(struct sim_view *view) {
    if (!swap(view->state, 0, view->slot + 1)) wait_for_lock(view);
}

void sim_unlock(struct sim_view *view) {
    __atomic_store_n(&view->state->lock, 0, __ATOMIC_RELEASE);
}

void sim_lock_over(struct sim_view *view, uint32_t owner) {
    if (owner != view->slot && swap(view->state, owner + 1, view->slot + 1))
        sim_recount(view->state);
    else
        sim_lock(view);
}
