#include "quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region.h"
#include "syscalls.h"
#include "vgpu/paths.h"

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static const char *skip_blanks(const char *text) {
    while (is_blank(*text))
        text++;
    return text;
}

int vgpu_quota_parse(const char *text, uint64_t *bytes) {
    uint64_t value = 0, unit = 1;
    text = skip_blanks(text);
    if (*text == '\0') return -ENODATA;
    if (!is_digit(*text)) return -EINVAL;
    for (; is_digit(*text); text++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return -EINVAL;
    switch (*text | 0x20) {
    case 'k':
        unit = UINT64_C(1) << 10;
        break;
    case 'm':
        unit = UINT64_C(1) << 20;
        break;
    case 'g':
        unit = UINT64_C(1) << 30;
        break;
    case 't':
        unit = UINT64_C(1) << 40;
        break;
    default:
        break;
    }
    if (unit > 1) {
        text++;
        text += (*text | 0x20) == 'i';
    }
    return *skip_blanks(text) != '\0' || __builtin_mul_overflow(value, unit, bytes) ? -EINVAL : 0;
}

/* Digits are kept as an integer over a power of ten: no floating point, no locale. Digits past the eighteenth change
 * less than a byte of any card. */
int vgpu_quota_parse_fraction(const char *text, uint64_t total_bytes, uint64_t *bytes) {
    uint64_t digits = 0, scale = 1;
    bool any = false, point = false;
    text = skip_blanks(text);
    if (*text == '\0') return -ENODATA;
    for (; is_digit(*text) || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        any = true;
        if (!point && *text != '0') return -EINVAL; /* 1 or more */
        if (point && scale < UINT64_C(1000000000000000000)) {
            digits = digits * 10 + (uint64_t)(*text - '0');
            scale *= 10;
        }
    }
    if (!any || *skip_blanks(text) != '\0' || digits == 0) return -EINVAL;
    *bytes = (uint64_t)((unsigned __int128)total_bytes * digits / scale);
    return *bytes ? 0 : -EINVAL;
}

/* The value of the annotations, before KAI rounded it. */
static int annotation(const struct vgpu_quota_texts *texts, uint64_t card_bytes, uint64_t *bytes,
                      enum vgpu_limit_source *source, const char **culprit) {
    uint64_t mib = 0;
    *culprit = "/etc/vgpu/" VGPU_QUOTA_MEMORY_FILE;
    int error = texts->memory.unreadable ? -EINVAL : vgpu_quota_parse(texts->memory.text, &mib);
    if (error == 0 && mib > 0 && !__builtin_mul_overflow(mib, VGPU_MIB, bytes)) {
        const char *end = skip_blanks(texts->memory.text);
        while (is_digit(*end))
            end++;
        *source = VGPU_SOURCE_MEMORY;
        return *skip_blanks(end) == '\0' ? 0 : -EINVAL; /* MiB, so no unit of its own */
    }
    if (error != -ENODATA) return -EINVAL;
    *culprit = "/etc/vgpu/" VGPU_QUOTA_FRACTION_FILE;
    *source = VGPU_SOURCE_FRACTION;
    return texts->fraction.unreadable ? -EINVAL : vgpu_quota_parse_fraction(texts->fraction.text, card_bytes, bytes);
}

static void refuse(struct vgpu_quota *quota, const char *culprit, const struct vgpu_text *text, const char *problem) {
    quota->source = VGPU_SOURCE_UNUSABLE;
    quota->limit_bytes = 0;
    if (text && text->present)
        snprintf(quota->why, sizeof quota->why, "%s holds \"%.*s\": %s", culprit, (int)strcspn(text->text, "\r\n"),
                 text->text, problem);
    else
        snprintf(quota->why, sizeof quota->why, "%s: %s", culprit, problem);
}

/* Rules 1 and 2: KAI's number if it fits the annotation, else the annotation. */
static void decide_injected(struct vgpu_quota *quota, const struct vgpu_quota_texts *texts, uint64_t card_bytes,
                            uint64_t *annotation_bytes) {
    enum vgpu_limit_source source = VGPU_SOURCE_NONE;
    const char *culprit = "";
    uint64_t kai_bytes = 0;
    int kai = texts->limit.unreadable ? -EINVAL : vgpu_quota_parse(texts->limit.text, &kai_bytes);
    int noted = annotation(texts, card_bytes, annotation_bytes, &source, &culprit);
    if (!texts->mounted) {
        refuse(quota, "/etc/vgpu", NULL, "not a mount, so not what the webhook put there");
        return;
    }
    if (noted == -EINVAL) {
        refuse(quota, culprit, source == VGPU_SOURCE_FRACTION ? &texts->fraction : &texts->memory,
               source == VGPU_SOURCE_FRACTION ? "not a fraction between 0 and 1" : "not a number of MiB");
        return;
    }
    if (kai == -EINVAL) {
        refuse(quota, "/etc/vgpu/" VGPU_QUOTA_LIMIT_FILE, &texts->limit, "not a size such as 4147m");
        return;
    }
    if (kai == 0 && kai_bytes > 0) {
        uint64_t most_bytes = card_bytes;
        if (noted == 0 && __builtin_add_overflow(*annotation_bytes, card_bytes / 100 + 100 * VGPU_MIB, &most_bytes))
            most_bytes = UINT64_MAX;
        if (kai_bytes <= most_bytes) {
            quota->limit_bytes = kai_bytes;
            quota->source = VGPU_SOURCE_KAI;
            return;
        }
    }
    if (kai == 0) quota->unbelieved_bytes = kai_bytes;
    if (noted == 0) {
        quota->limit_bytes = *annotation_bytes;
        quota->source = source;
    } else {
        refuse(quota, "/etc/vgpu", NULL, "neither a believable limit nor an annotation in it");
    }
}

struct vgpu_quota vgpu_quota_decide(const struct vgpu_quota_texts *texts, int index, uint64_t card_bytes,
                                    uint64_t physical_bytes) {
    struct vgpu_quota quota;
    uint64_t annotation_bytes = 0, asked_bytes = 0;
    const struct vgpu_text *environment = &texts->environment[index];
    memset(&quota, 0, sizeof quota);
    quota.limit_bytes = VGPU_UNLIMITED;
    quota.source = VGPU_SOURCE_UNLIMITED;
    if (texts->injected) {
        decide_injected(&quota, texts, card_bytes, &annotation_bytes);
        if (quota.source == VGPU_SOURCE_UNUSABLE) return quota;
    }
    int asked = environment->unreadable ? -EINVAL : vgpu_quota_parse(environment->text, &asked_bytes);
    if (asked == -EINVAL) {
        refuse(&quota, "CUDA_DEVICE_MEMORY_LIMIT", environment, "not a size such as 4147m");
        return quota;
    }
    /* 0 means "no limit", which is more than any limit; the annotation's own value was put there by the webhook. */
    if (asked == 0 && asked_bytes > 0 && asked_bytes < quota.limit_bytes &&
        (!texts->injected || asked_bytes != annotation_bytes)) {
        quota.limit_bytes = asked_bytes;
        quota.source = VGPU_SOURCE_ENV;
    }
    if (quota.limit_bytes != VGPU_UNLIMITED && quota.limit_bytes > physical_bytes) quota.limit_bytes = physical_bytes;
    return quota;
}

static void read_file(const char *path, struct vgpu_text *text) {
    memset(text, 0, sizeof *text);
    int fd = vgpu_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) {
        text->present = text->unreadable = errno != ENOENT;
        return;
    }
    ssize_t length = vgpu_read(fd, text->text, sizeof text->text);
    vgpu_close(fd);
    text->present = true;
    text->unreadable = length < 0 || length == (ssize_t)sizeof text->text;
    if (!text->unreadable) text->unreadable = memchr(text->text, '\0', (size_t)length) != NULL;
    text->text[text->unreadable ? 0 : length] = '\0';
}

void vgpu_quota_read(struct vgpu_quota_texts *texts) {
    struct stat status;
    texts->injected = stat(VGPU_QUOTA_DIR, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
    texts->mounted = texts->injected && vgpu_path_is_mount(VGPU_QUOTA_DIR);
    read_file(VGPU_QUOTA_DIR "/" VGPU_QUOTA_LIMIT_FILE, &texts->limit);
    read_file(VGPU_QUOTA_DIR "/" VGPU_QUOTA_MEMORY_FILE, &texts->memory);
    read_file(VGPU_QUOTA_DIR "/" VGPU_QUOTA_FRACTION_FILE, &texts->fraction);
}

void vgpu_quota_read_environment(struct vgpu_quota_texts *texts) {
    for (int index = 0; index < VGPU_MAX_DEVICES; index++) {
        struct vgpu_text *text = &texts->environment[index];
        char name[40];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", index);
        const char *value = getenv(name);
        if (!value || *skip_blanks(value) == '\0') value = getenv("CUDA_DEVICE_MEMORY_LIMIT");
        memset(text, 0, sizeof *text);
        text->present = value != NULL;
        text->unreadable = value && strlen(value) >= sizeof text->text;
        if (value && !text->unreadable) memcpy(text->text, value, strlen(value) + 1);
    }
}

uint64_t vgpu_quota_signature(void) {
    static const char *const paths[] = {
        VGPU_QUOTA_DIR,
        VGPU_QUOTA_DIR "/" VGPU_QUOTA_LIMIT_FILE,
        VGPU_QUOTA_DIR "/" VGPU_QUOTA_MEMORY_FILE,
        VGPU_QUOTA_DIR "/" VGPU_QUOTA_FRACTION_FILE,
    };
    uint64_t signature = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct stat status;
        uint64_t file = 0;
        if (stat(paths[i], &status) == 0)
            file = (uint64_t)status.st_ino ^ (uint64_t)status.st_mtim.tv_sec << 20 ^
                   (uint64_t)status.st_mtim.tv_nsec << 3 ^ (uint64_t)status.st_size << 50 ^
                   (uint64_t)status.st_dev << 32;
        signature = (signature ^ file ^ i) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return signature;
}
