/* What the probe reads and prints: sizes and JSON.
 *
 * Sizes in: an integer with nothing (bytes) or k, m, g, t, each with or without "i", "B" or "iB", any case: all binary.
 * Sizes out: exact, in the largest unit that divides them ("3 GiB", "4147 MiB", "4348444673 bytes"). */
#ifndef VGPU_PROBE_TEXT_H
#define VGPU_PROBE_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PROBE_MIB UINT64_C(1048576)

/* Returns false, and leaves *bytes alone, for anything that isn't a size or doesn't fit 64 bits. */
bool probe_size_parse(const char *text, uint64_t *bytes);

struct probe_size_text {
    char text[32];
};
struct probe_size_text probe_size_format(uint64_t bytes);

/* One JSON document on a stream. Keys are NULL inside arrays. A writer whose stream is NULL prints nothing, so that a
 * command writes both its outputs in one place. */
struct probe_json {
    FILE *stream;
    bool follows; /* the next item needs a comma */
};
void probe_json_begin(struct probe_json *json, const char *key, char bracket);
void probe_json_end(struct probe_json *json, char bracket);
void probe_json_text(struct probe_json *json, const char *key, const char *value); /* NULL prints null */
void probe_json_number(struct probe_json *json, const char *key, uint64_t value);
void probe_json_bool(struct probe_json *json, const char *key, bool value);
void probe_json_done(struct probe_json *json); /* newline, flushed */

#endif
