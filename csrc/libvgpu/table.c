#include "table.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>

#include "syscalls.h"

#define FIRST_CAPACITY 256

void vgpu_private_lock_wait(uint32_t *lock) {
    int kept_errno = errno;
    for (unsigned round = 0;; round++) {
        uint32_t unowned = 0;
        if (__atomic_load_n(lock, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(lock, &unowned, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            errno = kept_errno;
            return;
        }
        if (round < 100) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else if (round < 120) {
            sched_yield();
        } else { /* the holder is inside the driver, or has no processor */
            vgpu_nap(50000);
        }
    }
}

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* Programs free in the order in which they allocated, or in the reverse, and whole blocks of 2 MiB follow each other:
 * eight neighbours share a few cache lines, the eights are spread. Small requests and handles are spread one by one. */
static inline uint64_t home(const struct vgpu_table *table, uint64_t key) {
    uint64_t spread = key & 0x1fffff
                          ? key * GOLDEN
                          : ((key >> 24) * GOLDEN & ~(UINT64_C(7) << table->shift)) | (key >> 21 & 7) << table->shift;
    return spread >> table->shift;
}

static inline uint64_t distance(const struct vgpu_table *table, uint64_t at) {
    return (at - home(table, table->entries[at].key)) & (table->capacity - 1);
}

/* The entry, or NULL. Whoever is nearer to his home than we would be shows that we aren't here (see insert). */
static inline struct vgpu_entry *seek(const struct vgpu_table *table, uint64_t key) {
    uint64_t mask = table->capacity - 1, at = home(table, key);
    for (uint64_t from_home = 0; table->entries[at].key != 0; from_home++, at = (at + 1) & mask) {
        if (table->entries[at].key == key) return &table->entries[at];
        if (distance(table, at) < from_home) return NULL;
    }
    return NULL;
}

/* There is room. Who is further from home takes the place of who is nearer: along a run the homes are in order, so a
 * removal can stop moving others back at the first that is at home. True if the key is new; else
 * what stood there goes to `old`, unless that is NULL. */
static bool insert(struct vgpu_table *table, const struct vgpu_entry *given, struct vgpu_entry *old) {
    uint64_t mask = table->capacity - 1, at = home(table, given->key), from_home = 0;
    for (; table->entries[at].key != 0; from_home++, at = (at + 1) & mask) {
        if (table->entries[at].key == given->key) {
            if (old) *old = table->entries[at];
            table->entries[at] = *given;
            return false;
        }
        if (distance(table, at) < from_home) break;
    }
    struct vgpu_entry entry = *given;
    for (; table->entries[at].key != 0; from_home++, at = (at + 1) & mask) {
        uint64_t others = distance(table, at);
        if (others >= from_home) continue;
        struct vgpu_entry moved = table->entries[at];
        table->entries[at] = entry;
        entry = moved;
        from_home = others;
    }
    table->entries[at] = entry;
    return true;
}

static int grow(struct vgpu_table *table) {
    struct vgpu_table bigger = *table;
    int kept_errno = errno;
    bigger.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY;
    bigger.shift = 64 - (uint32_t)__builtin_ctzll(bigger.capacity);
    uint64_t bytes = bigger.capacity * sizeof *bigger.entries;
    bigger.entries = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bigger.entries == MAP_FAILED) {
        errno = kept_errno;
        return -ENOMEM;
    }
    madvise(bigger.entries, bytes, MADV_DONTFORK);
    madvise(bigger.entries, bytes, MADV_HUGEPAGE);
    errno = kept_errno;
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entries[i].key) insert(&bigger, &table->entries[i], NULL);
    if (table->entries) munmap(table->entries, table->capacity * sizeof *table->entries);
    table->entries = bigger.entries;
    table->shift = bigger.shift;
    table->capacity = bigger.capacity;
    return 0;
}

/* At most three quarters full: probes stay short, and fewer cache lines are in use than with more room. */
static int make_room(struct vgpu_table *table) {
    if (__builtin_expect(table->count * 4 >= table->capacity * 3, 0)) return grow(table);
    return 0;
}

static int put(struct vgpu_table *table, const struct vgpu_entry *entry) {
    int error = make_room(table);
    if (error == 0) table->count += insert(table, entry, NULL);
    return error;
}

static void erase(struct vgpu_table *table, const struct vgpu_entry *entry) {
    uint64_t mask = table->capacity - 1;
    uint64_t hole = (uint64_t)(entry - table->entries);
    for (uint64_t at = (hole + 1) & mask; table->entries[at].key && distance(table, at); at = (at + 1) & mask) {
        table->entries[hole] = table->entries[at];
        hole = at;
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

int vgpu_table_exchange(struct vgpu_table *table, const struct vgpu_entry *entry, struct vgpu_entry *old) {
    vgpu_private_lock(&table->lock);
    int result = make_room(table);
    if (result == 0) {
        bool fresh = insert(table, entry, old);
        table->count += fresh;
        result = !fresh;
    }
    vgpu_private_unlock(&table->lock);
    return result;
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
    if (place) {
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
    if (place) {
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
    if (!place) {
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
        if (place->key && (!wanted || wanted(place, data))) {
            struct vgpu_entry entry = *place;
            erase(table, place); /* may shift another entry to this place: look at it again */
            if (taken) taken(&entry, data);
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
