/* Who holds what: charging, giving back, what the dead leave, memory that several processes share. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static struct sim_holding *mine(struct sim_view *view, unsigned card) {
    return &view->state->slot[view->slot].holding[card];
}

static bool try_charge(struct sim_view *view, unsigned card, enum sim_kind kind, uint64_t bytes, int requests) {
    struct sim_card *target = &view->state->card[card];
    struct sim_holding *holding = mine(view, card);
    sim_lock(view);
    bool fits = bytes <= target->config.total_bytes - target->config.reserved_bytes - target->used_bytes;
    if (fits) {
        target->used_bytes += bytes;
        holding->bytes[kind] += bytes;
        holding->allocations += (uint64_t)(int64_t)requests;
    }
    sim_unlock(view);
    return fits;
}

int sim_charge(struct sim_view *view, unsigned card, enum sim_kind kind, uint64_t bytes, int requests) {
    if (try_charge(view, card, kind, bytes, requests)) return 0;
    sim_reap(view);
    return try_charge(view, card, kind, bytes, requests) ? 0 : -ENOMEM;
}

void sim_uncharge(struct sim_view *view, unsigned card, enum sim_kind kind, uint64_t bytes, int requests) {
    sim_lock(view);
    view->state->card[card].used_bytes -= bytes;
    mine(view, card)->bytes[kind] -= bytes;
    mine(view, card)->allocations -= (uint64_t)(int64_t)requests;
    sim_unlock(view);
}

void sim_count_request(struct sim_view *view, unsigned card, int requests) {
    __atomic_fetch_add(&mine(view, card)->allocations, (uint64_t)(int64_t)requests, __ATOMIC_RELAXED);
}

void sim_count_context(struct sim_view *view, unsigned card, int contexts) {
    __atomic_fetch_add(&mine(view, card)->contexts, (uint32_t)contexts, __ATOMIC_RELAXED);
}

uint64_t sim_free_bytes(struct sim_view *view, unsigned card) {
    struct sim_card *target = &view->state->card[card];
    return target->config.total_bytes - target->config.reserved_bytes -
           __atomic_load_n(&target->used_bytes, __ATOMIC_RELAXED);
}

void sim_recount(struct sim_state *state) {
    uint64_t used[SIM_MAX_CARDS] = {0};
    for (uint32_t i = 0; i < state->slots_used; i++)
        for (uint32_t card = 0; card < state->cards; card++)
            for (unsigned kind = 0; kind < SIM_KINDS; kind++)
                used[card] += state->slot[i].holding[card].bytes[kind];
    for (uint32_t i = 0; i < state->objects_used; i++)
        if (state->object[i].state) used[state->object[i].card] += state->object[i].bytes;
    for (uint32_t card = 0; card < state->cards; card++)
        state->card[card].used_bytes = used[card];
}

/* ---- objects ---- */

#define INDEX_BITS 16

static struct sim_object *find(struct sim_state *state, int64_t number) {
    uint64_t index = (uint64_t)number & ((1u << INDEX_BITS) - 1);
    if (number < 0 || index >= SIM_MAX_OBJECTS) return NULL;
    struct sim_object *object = &state->object[index];
    return object->state && object->generation == (uint32_t)(number >> INDEX_BITS) ? object : NULL;
}

static bool has_user(const struct sim_object *object, uint32_t slot) {
    return object->users[slot / 64] >> (slot % 64) & 1;
}

/* Takes one user away; the memory dies with the last, the charge moves to another. Under the lock. */
static void drop_user(struct sim_state *state, struct sim_object *object, uint32_t slot) {
    object->users[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    for (uint32_t word = 0; word < SIM_MAX_SLOTS / 64; word++)
        if (object->users[word]) {
            if (object->owner == slot) object->owner = word * 64 + (uint32_t)__builtin_ctzll(object->users[word]);
            return;
        }
    state->card[object->card].used_bytes -= object->bytes;
    object->bytes = 0;
    object->state = 0;
}

int64_t sim_object_create(struct sim_view *view, unsigned card, uint64_t bytes) {
    struct sim_state *state = view->state;
    int64_t number = -ENOSPC;
    sim_lock(view);
    for (uint32_t i = 0; i < SIM_MAX_OBJECTS; i++) {
        struct sim_object *object = &state->object[i];
        if (object->state) continue;
        uint32_t generation = object->generation + 1;
        *object = (struct sim_object){.generation = generation, .card = card, .owner = view->slot};
        object->users[view->slot / 64] = UINT64_C(1) << (view->slot % 64);
        object->bytes = bytes;
        mine(view, card)->bytes[SIM_DATA] -= bytes;
        if (state->objects_used <= i) state->objects_used = i + 1;
        object->state = 1;
        number = (int64_t)generation << INDEX_BITS | (int64_t)i;
        break;
    }
    sim_unlock(view);
    return number;
}

int sim_object_use(struct sim_view *view, int64_t number) {
    int result = -ENOENT;
    sim_lock(view);
    struct sim_object *object = find(view->state, number);
    if (object) {
        result = has_user(object, view->slot);
        object->users[view->slot / 64] |= UINT64_C(1) << (view->slot % 64);
    }
    sim_unlock(view);
    return result;
}

void sim_object_drop(struct sim_view *view, int64_t number) {
    sim_lock(view);
    struct sim_object *object = find(view->state, number);
    if (object && has_user(object, view->slot)) drop_user(view->state, object, view->slot);
    sim_unlock(view);
}

/* ---- slots: entering, leaving, dying ---- */

/* Under the lock. The slot's holdings are zeroed before the cards' sums shrink: who dies in between leaves sums that
 * are too large, and the next owner of the lock recounts. */
static void empty_slot(struct sim_state *state, uint32_t index) {
    struct sim_slot *slot = &state->slot[index];
    for (uint32_t card = 0; card < state->cards; card++) {
        uint64_t bytes = 0;
        for (unsigned kind = 0; kind < SIM_KINDS; kind++)
            bytes += slot->holding[card].bytes[kind];
        memset(&slot->holding[card], 0, sizeof slot->holding[card]);
        state->card[card].used_bytes -= bytes;
    }
    for (uint32_t i = 0; i < state->objects_used; i++)
        if (state->object[i].state && has_user(&state->object[i], index)) drop_user(state, &state->object[i], index);
}

void sim_slot_enter(struct sim_view *view) {
    struct sim_state *state = view->state;
    struct sim_slot *slot = &state->slot[view->slot];
    struct sim_slot self = {0};
    sim_identify(&self);
    /* A dead predecessor in this very slot may have left the lock in the name that is ours now. */
    if (__atomic_load_n(&state->lock, __ATOMIC_ACQUIRE) == view->slot + 1)
        sim_recount(state);
    else
        sim_lock(view);
    if (state->slots_used <= view->slot) state->slots_used = view->slot + 1;
    empty_slot(state, view->slot);
    slot->generation++;
    slot->pid = self.pid;
    slot->pid_namespace = self.pid_namespace;
    slot->start_time_ticks = self.start_time_ticks;
    slot->host_pid = self.pid_namespace == state->host_pid_namespace ? self.pid : 0;
    __atomic_store_n(&slot->state, view->role, __ATOMIC_RELEASE);
    sim_unlock(view);
}

void sim_slot_clear(struct sim_view *view, uint32_t slot) {
    sim_lock_over(view, slot);
    empty_slot(view->state, slot);
    __atomic_store_n(&view->state->slot[slot].state, 0, __ATOMIC_RELEASE);
    sim_unlock(view);
}

void sim_reap(struct sim_view *view) {
    struct sim_state *state = view->state;
    int fd = open(view->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    for (uint32_t i = 0; i < state->slots_used; i++) {
        if (i == view->slot || __atomic_load_n(&state->slot[i].state, __ATOMIC_RELAXED) == 0) continue;
        if (!sim_byte_lock(fd, i)) continue;
        if (__atomic_load_n(&state->slot[i].state, __ATOMIC_RELAXED) != 0) sim_slot_clear(view, i);
        sim_byte_unlock(fd, i);
    }
    close(fd);
}

/* The host's number of a process isn't known yet: one that the kernel gives to none, so that no two have the same. */
#define FIRST_UNKNOWN_PID ((1 << 22) + 1)

unsigned sim_processes(struct sim_view *view, unsigned card, struct sim_process *out, unsigned max) {
    struct sim_state *state = view->state;
    unsigned count = 0;
    sim_reap(view);
    sim_resolve_pids(view);
    sim_lock(view);
    for (uint32_t i = 0; i < state->slots_used; i++) {
        const struct sim_slot *slot = &state->slot[i];
        const struct sim_holding *holding = &slot->holding[card];
        if (slot->state != SIM_PROGRAM) continue;
        struct sim_process process = {.pid = slot->host_pid ? slot->host_pid : FIRST_UNKNOWN_PID + (int32_t)i,
                                      .ns_pid = slot->pid,
                                      .slot = i,
                                      .contexts = holding->contexts,
                                      .allocations = holding->allocations,
                                      .launches = holding->launches + holding->other_launches};
        uint64_t bytes = 0;
        for (unsigned kind = 0; kind < SIM_KINDS; kind++)
            bytes += process.bytes[kind] = holding->bytes[kind];
        for (uint32_t o = 0; o < state->objects_used; o++)
            if (state->object[o].state && state->object[o].card == card && state->object[o].owner == i)
                bytes += state->object[o].bytes, process.bytes[SIM_DATA] += state->object[o].bytes;
        if (bytes == 0 && process.contexts == 0) continue;
        if (count < max) out[count] = process;
        count++;
    }
    sim_unlock(view);
    return count;
}
