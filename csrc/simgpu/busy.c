/* Utilisation: how long launches kept a card busy. Work queues up behind what is queued, as on one card. */
#include <time.h>

#include "internal.h"

uint64_t sim_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill(struct sim_busy *busy, uint64_t from, uint64_t to) {
    uint64_t horizon = (SIM_BUSY_BUCKETS - 1) * SIM_BUSY_BUCKET_NS;
    if (to > horizon && from < to - horizon) from = to - horizon;
    while (from < to) {
        uint64_t epoch = from / SIM_BUSY_BUCKET_NS;
        uint64_t end = (epoch + 1) * SIM_BUSY_BUCKET_NS < to ? (epoch + 1) * SIM_BUSY_BUCKET_NS : to;
        uint32_t index = (uint32_t)(epoch % SIM_BUSY_BUCKETS);
        if (busy->bucket[index].epoch != (uint32_t)epoch) {
            busy->bucket[index].epoch = (uint32_t)epoch;
            busy->bucket[index].busy_us = 0;
        }
        busy->bucket[index].busy_us += (uint32_t)((end - from) / 1000);
        from = end;
    }
}

/* Books what is over by now; what is still queued stays out of the buckets. */
static void settle(struct sim_busy *busy, uint64_t now) {
    uint64_t to = busy->until_ns < now ? busy->until_ns : now;
    if (busy->settled_ns < to) {
        fill(busy, busy->settled_ns, to);
        busy->settled_ns = to;
    }
}

static uint64_t queue(struct sim_busy *busy, uint64_t now, uint64_t ns) {
    settle(busy, now);
    if (busy->until_ns < now) busy->until_ns = busy->settled_ns = now;
    busy->until_ns += ns;
    return busy->until_ns;
}

uint64_t sim_busy_add(struct sim_view *view, unsigned card, uint64_t ns) {
    uint64_t now = sim_now_ns();
    sim_lock(view);
    queue(&view->state->slot[view->slot].holding[card].busy, now, ns);
    uint64_t done = queue(&view->state->card[card].busy, now, ns);
    sim_unlock(view);
    return done;
}

static unsigned percent(struct sim_view *view, struct sim_busy *busy, uint64_t window_ns) {
    uint64_t now = sim_now_ns(), busy_us = 0;
    uint64_t buckets = window_ns / SIM_BUSY_BUCKET_NS;
    if (buckets == 0) buckets = 1;
    if (buckets > 24) buckets = 24;
    sim_lock(view);
    settle(busy, now);
    uint64_t current = now / SIM_BUSY_BUCKET_NS;
    for (uint64_t epoch = current - buckets; epoch <= current; epoch++)
        if (busy->bucket[epoch % SIM_BUSY_BUCKETS].epoch == (uint32_t)epoch)
            busy_us += busy->bucket[epoch % SIM_BUSY_BUCKETS].busy_us;
    sim_unlock(view);
    /* The current bucket is only partly over. */
    uint64_t span_us = (buckets * SIM_BUSY_BUCKET_NS + now % SIM_BUSY_BUCKET_NS) / 1000;
    uint64_t share = (busy_us * 100 + span_us / 2) / span_us;
    return share > 100 ? 100 : (unsigned)share;
}

unsigned sim_card_busy_percent(struct sim_view *view, unsigned card, uint64_t window_ns) {
    return percent(view, &view->state->card[card].busy, window_ns);
}

unsigned sim_slot_busy_percent(struct sim_view *view, uint32_t slot, unsigned card, uint64_t window_ns) {
    return percent(view, &view->state->slot[slot].holding[card].busy, window_ns);
}
