#include "text.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

bool probe_size_parse(const char *text, uint64_t *bytes) {
    uint64_t value = 0;
    const char *at = text;
    if (!isdigit((unsigned char)*at)) return false;
    for (; isdigit((unsigned char)*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    unsigned shift = 0;
    if (*at != '\0' && strcasecmp(at, "b") != 0) {
        static const char units[] = "kmgt";
        const char *unit = strchr(units, tolower((unsigned char)*at));
        if (unit == NULL) return false;
        shift = 10 * (unsigned)(unit - units + 1);
        at++;
        if (tolower((unsigned char)*at) == 'i') at++;
        if (*at != '\0' && strcasecmp(at, "b") != 0) return false;
    }
    if (value > (UINT64_MAX >> shift)) return false;
    *bytes = value << shift;
    return true;
}

struct probe_size_text probe_size_format(uint64_t bytes) {
    struct probe_size_text out;
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out.text, sizeof out.text, "%" PRIu64 " %s", bytes, units[unit]);
    return out;
}

static void json_string(FILE *stream, const char *text) {
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') {
            fprintf(stream, "\\%c", byte);
        } else if (byte < 0x20) {
            fprintf(stream, "\\u%04x", byte);
        } else {
            fputc(byte, stream);
        }
    }
    fputc('"', stream);
}

static void json_item(struct probe_json *json, const char *key) {
    if (json->follows) fputs(", ", json->stream);
    json->follows = true;
    if (key == NULL) return;
    json_string(json->stream, key);
    fputs(": ", json->stream);
}

void probe_json_begin(struct probe_json *json, const char *key, char bracket) {
    if (json->stream == NULL) return;
    json_item(json, key);
    fputc(bracket, json->stream);
    json->follows = false;
}

void probe_json_end(struct probe_json *json, char bracket) {
    if (json->stream == NULL) return;
    fputc(bracket, json->stream);
    json->follows = true;
}

void probe_json_text(struct probe_json *json, const char *key, const char *value) {
    if (json->stream == NULL) return;
    json_item(json, key);
    if (value == NULL) {
        fputs("null", json->stream);
    } else {
        json_string(json->stream, value);
    }
}

void probe_json_number(struct probe_json *json, const char *key, uint64_t value) {
    if (json->stream == NULL) return;
    json_item(json, key);
    fprintf(json->stream, "%" PRIu64, value);
}

void probe_json_bool(struct probe_json *json, const char *key, bool value) {
    if (json->stream == NULL) return;
    json_item(json, key);
    fputs(value ? "true" : "false", json->stream);
}

void probe_json_done(struct probe_json *json) {
    if (json->stream == NULL) return;
    fputc('\n', json->stream);
    fflush(json->stream);
    json->follows = false;
}
