#include "table.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#define FIRST_CAPACITY 256

void vgpu_private_lock_wait(uint32_t *lock) {
    for (unsigned round = 0;; round++) {
        uint32_t unowned = 0;
        if (__atomic_load_n(lock, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(lock, &unowned, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        if (round < 100) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else if (round < 120) {
            sched_yield();
        } else { /* the holder is inside the driver, or has no processor */
            struct timespec nap = {0, 50000};
            nanosleep(&nap, NULL);
        }
    }
}

/* Pointers differ in bits 9 to 47; the multiplication spreads them to the top. */
static uint64_t home(const struct vgpu_table *table, uint64_t key) {
    return (key * UINT64_C(0x9E3779B97F4A7C15)) >> table->shift;
}

static struct vgpu_entry *seek(const struct vgpu_table *table, uint64_t key) {
    uint64_t mask = table->capacity - 1;
    uint64_t at = home(table, key);
    while (table->entries[at].key != 0 && table->entries[at].key != key)
        at = (at + 1) & mask;
    return &table->entries[at];
}

static int grow(struct vgpu_table *table) {
    struct vgpu_table bigger = *table;
    bigger.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY;
    bigger.shift = 64 - (uint32_t)__builtin_ctzll(bigger.capacity);
    bigger.entries = mmap(NULL, bigger.capacity * sizeof *bigger.entries, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bigger.entries == MAP_FAILED) return -ENOMEM;
    madvise(bigger.entries, bigger.capacity * sizeof *bigger.entries, MADV_DONTFORK);
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entries[i].key) *seek(&bigger, table->entries[i].key) = table->entries[i];
    if (table->entries) munmap(table->entries, table->capacity * sizeof *table->entries);
    table->entries = bigger.entries;
    table->shift = bigger.shift;
    table->capacity = bigger.capacity;
    return 0;
}

/* At most half full: probes stay short. */
static int make_room(struct vgpu_table *table) {
    if (__builtin_expect(table->count * 2 >= table->capacity, 0)) return grow(table);
    return 0;
}

static int put(struct vgpu_table *table, const struct vgpu_entry *entry) {
    int error = make_room(table);
    if (error) return error;
    struct vgpu_entry *place = seek(table, entry->key);
    table->count += place->key == 0;
    *place = *entry;
    return 0;
}

/* Moves back whoever was pushed past the hole, so that no entry is ever behind an empty place. */
static void erase(struct vgpu_table *table, struct vgpu_entry *entry) {
    uint64_t mask = table->capacity - 1;
    uint64_t hole = (uint64_t)(entry - table->entries);
    for (uint64_t at = (hole + 1) & mask; table->entries[at].key; at = (at + 1) & mask) {
        uint64_t wish = home(table, table->entries[at].key);
        if (((at - wish) & mask) >= ((at - hole) & mask)) {
            table->entries[hole] = table->entries[at];
            hole = at;
        }
    }
    table->entries[hole].key = 0;
    table->count--;
}

int vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry) {
    vgpu_private_lock(&table->lock);
    int error = put(table, entry);
    vgpu_private_unlock(&table->lock);
    return error;
}

int vgpu_table_reserve(struct vgpu_table *table) {
    vgpu_private_lock(&table->lock);
    int error = make_room(table);
    vgpu_private_unlock(&table->lock);
    return error;
}

bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *entry) {
    bool found = false;
    if (key == 0 || __atomic_load_n(&table->count, __ATOMIC_RELAXED) == 0) return false;
    vgpu_private_lock(&table->lock);
    struct vgpu_entry *place = seek(table, key);
    if (place->key) {
        *entry = *place;
        erase(table, place);
        found = true;
    }
    vgpu_private_unlock(&table->lock);
    return found;
}

bool vgpu_table_find(struct vgpu_table *table, uint64_t key, struct vgpu_entry *entry) {
    bool found = false;
    if (key == 0 || __atomic_load_n(&table->count, __ATOMIC_RELAXED) == 0) return false;
    vgpu_private_lock(&table->lock);
    struct vgpu_entry *place = seek(table, key);
    if (place->key) {
        *entry = *place;
        found = true;
    }
    vgpu_private_unlock(&table->lock);
    return found;
}

int64_t vgpu_table_refer(struct vgpu_table *table, uint64_t key, int difference, const struct vgpu_entry *fresh,
                         struct vgpu_entry *last) {
    int64_t result = -ENOENT;
    vgpu_private_lock(&table->lock);
    struct vgpu_entry *place = table->capacity ? seek(table, key) : NULL;
    if (!place || !place->key) {
        if (difference > 0 && fresh && key) {
            struct vgpu_entry entry = *fresh;
            entry.key = key;
            entry.references = (uint32_t)difference;
            int error = put(table, &entry);
            result = error ? error : difference;
        }
    } else {
        place->references += (uint32_t)difference;
        result = place->references;
        if (last) *last = *place;
        if (result == 0) erase(table, place);
    }
    vgpu_private_unlock(&table->lock);
    return result;
}

void vgpu_table_take_each(struct vgpu_table *table, bool (*wanted)(const struct vgpu_entry *entry, void *data),
                          void (*taken)(const struct vgpu_entry *entry, void *data), void *data) {
    vgpu_private_lock(&table->lock);
    for (uint64_t i = 0; i < table->capacity;) {
        struct vgpu_entry *place = &table->entries[i];
        if (place->key && wanted(place, data)) {
            struct vgpu_entry entry = *place;
            erase(table, place); /* may shift another entry to this place: look at it again */
            taken(&entry, data);
        } else {
            i++;
        }
    }
    vgpu_private_unlock(&table->lock);
}

void vgpu_table_each(struct vgpu_table *table, void (*visit)(struct vgpu_entry *entry, void *data), void *data) {
    vgpu_private_lock(&table->lock);
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entries[i].key) visit(&table->entries[i], data);
    vgpu_private_unlock(&table->lock);
}
