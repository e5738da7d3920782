/* A hash table from a driver's handle or pointer to what was charged for it: open addressing with Robin Hood probing
 * and deletion by shifting back, so that finding, adding and removing cost the same with ten entries and with fifty
 * thousand, in any order. Its memory isn't inherited by a forked child (the struct itself lives in memory that the
 * child sees as zeroes, which is the empty table).
 *
 * Each table has a lock of its own; every function here takes it. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct vgpu_entry {
    uint64_t key;     /* never 0 */
    uint64_t bytes;   /* charged */
    uint64_t data;    /* of the topic that owns the table */
    uint8_t device;   /* index in the region */
    uint8_t kind;     /* enum vgpu_kind */
    uint16_t context; /* vgpu_context_number() of the context that it dies with; 0: of none */
    uint32_t references;
};

struct vgpu_table {
    uint32_t lock;
    uint32_t shift; /* 64 - log2(capacity) */
    uint64_t capacity;
    uint64_t count;
    struct vgpu_entry *entries;
};

/* Puts a copy of `entry` in; one with the same key is replaced. 0 or -ENOMEM. */
int vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry);

/* The same; 1 if there was one with the same key, which goes to `old`: the driver has given out an address or a handle
 * again that it took back with a context, and whoever saw that context die hasn't got to it yet. */
int vgpu_table_exchange(struct vgpu_table *table, const struct vgpu_entry *entry, struct vgpu_entry *old);

/* Makes sure that the next put succeeds. 0 or -ENOMEM. */
int vgpu_table_reserve(struct vgpu_table *table);

/* Removes the entry and copies it to `entry`; false if there is none. */
bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *entry);

/* Copies the entry; false if there is none. */
bool vgpu_table_find(struct vgpu_table *table, uint64_t key, struct vgpu_entry *entry);

/* Adds to the entry's references (making it from `fresh` where there is none, with references 0 before the addition);
 * returns the references that it has then, or -ENOMEM. At 0 the entry is removed and copied to `last` (may be NULL).
 * A negative `difference` for a key that is unknown returns -ENOENT. */
int64_t vgpu_table_refer(struct vgpu_table *table, uint64_t key, int difference, const struct vgpu_entry *fresh,
                         struct vgpu_entry *last);

/* Removes every entry for which `wanted` is true (NULL: every one) and hands each to `taken` (may be NULL); both run
 * with the table's lock held. */
void vgpu_table_take_each(struct vgpu_table *table, bool (*wanted)(const struct vgpu_entry *entry, void *data),
                          void (*taken)(const struct vgpu_entry *entry, void *data), void *data);

/* Shows every entry to `visit`, which may change all but the key; with the table's lock held. */
void vgpu_table_each(struct vgpu_table *table, void (*visit)(struct vgpu_entry *entry, void *data), void *data);

/* A lock for process-private state: free is 0, nothing to initialise, nothing to repair after fork. */
void vgpu_private_lock_wait(uint32_t *lock);

static inline void vgpu_private_lock(uint32_t *lock) {
    uint32_t unowned = 0;
    if (__builtin_expect(!__atomic_compare_exchange_n(lock, &unowned, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED), 0))
        vgpu_private_lock_wait(lock);
}

static inline bool vgpu_private_trylock(uint32_t *lock) {
    uint32_t unowned = 0;
    return __atomic_compare_exchange_n(lock, &unowned, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void vgpu_private_unlock(uint32_t *lock) {
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
