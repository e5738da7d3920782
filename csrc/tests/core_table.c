/* The hash table against a plain array that does the same. */
#include <errno.h>
#include <stdint.h>

#include "core_check.h"
#include "table.h"

#define KEYS 3000

static uint32_t state = 1;

static uint32_t number(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static void agrees_with_a_plain_array_in_any_order(void) {
    static struct vgpu_table table;
    static uint64_t expected[KEYS];
    struct vgpu_entry entry;
    for (int step = 0; step < 400000; step++) {
        uint32_t i = number(KEYS);
        uint64_t key = UINT64_C(0x7f0000000000) + i * UINT64_C(512);
        if (number(2)) {
            struct vgpu_entry fresh = {.key = key, .bytes = number(1000) + 1};
            CHECK(vgpu_table_put(&table, &fresh) == 0, "put");
            expected[i] = fresh.bytes;
        } else {
            bool found = vgpu_table_take(&table, key, &entry);
            CHECK(found == (expected[i] != 0), "key %u", i);
            CHECK(!found || entry.bytes == expected[i], "key %u: %llu", i, (unsigned long long)entry.bytes);
            expected[i] = 0;
        }
    }
    uint64_t count = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        bool found = vgpu_table_find(&table, UINT64_C(0x7f0000000000) + i * UINT64_C(512), &entry);
        CHECK(found == (expected[i] != 0) && (!found || entry.bytes == expected[i]), "key %u", i);
        count += found;
    }
    CHECK(table.count == count, "%llu", (unsigned long long)table.count);
}

static bool is_even(const struct vgpu_entry *entry, void *data) {
    (void)data;
    return entry->bytes % 2 == 0;
}

static void add_up(const struct vgpu_entry *entry, void *data) {
    *(uint64_t *)data += entry->bytes;
}

static void taking_each_takes_all_that_are_wanted_and_no_other(void) {
    static struct vgpu_table table;
    uint64_t sum = 0;
    for (uint64_t i = 1; i <= 1000; i++) {
        struct vgpu_entry entry = {.key = i << 21, .bytes = i};
        vgpu_table_put(&table, &entry);
    }
    vgpu_table_take_each(&table, is_even, add_up, &sum);
    CHECK(sum == 250500 && table.count == 500, "%llu", (unsigned long long)sum);
    struct vgpu_entry entry;
    for (uint64_t i = 1; i <= 1000; i++)
        CHECK(vgpu_table_find(&table, i << 21, &entry) == (i % 2 == 1), "%llu", (unsigned long long)i);
}

static void references_are_counted_to_the_last(void) {
    static struct vgpu_table table;
    struct vgpu_entry fresh = {.bytes = 7}, last;
    CHECK(vgpu_table_refer(&table, 5, -1, NULL, NULL) == -ENOENT, "unknown");
    CHECK(vgpu_table_refer(&table, 5, 1, &fresh, NULL) == 1, "first");
    CHECK(vgpu_table_refer(&table, 5, 1, &fresh, NULL) == 2, "second");
    CHECK(vgpu_table_refer(&table, 5, -1, NULL, &last) == 1, "one left");
    CHECK(vgpu_table_refer(&table, 5, -1, NULL, &last) == 0 && last.bytes == 7, "last");
    CHECK(table.count == 0 && vgpu_table_refer(&table, 5, -1, NULL, NULL) == -ENOENT, "gone");
}

static void an_exchanged_entry_is_handed_out_and_not_lost(void) {
    struct vgpu_table table = {0};
    struct vgpu_entry first = {.key = 5, .bytes = 7}, second = {.key = 5, .bytes = 9}, old = {.bytes = 1}, found;
    CHECK(vgpu_table_exchange(&table, &first, &old) == 0 && old.bytes == 1, "fresh");
    CHECK(vgpu_table_exchange(&table, &second, &old) == 1 && old.bytes == 7, "replaced");
    CHECK(vgpu_table_take(&table, 5, &found) && found.bytes == 9 && table.count == 0, "once");
}

int main(int argc, char **argv) {
#define CASE(name)                                                                                                     \
    {                                                                                                                  \
        #name, name                                                                                                    \
    }
    static const struct core_case cases[] = {
        CASE(agrees_with_a_plain_array_in_any_order),
        CASE(taking_each_takes_all_that_are_wanted_and_no_other),
        CASE(references_are_counted_to_the_last),
        CASE(an_exchanged_entry_is_handed_out_and_not_lost),
    };
    return core_run(cases, (int)(sizeof cases / sizeof *cases), argc, argv);
}
