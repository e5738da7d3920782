/* region: the container's ledger for people. Reads the file without mapping it and believes no count in it. */
#define _GNU_SOURCE
#include "vgpu/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "options.h"
#include "text.h"
#include "vgpu/paths.h"

#ifndef F_OFD_GETLK /* Linux 3.15; the headers of glibc 2.17 don't know it */
#define F_OFD_GETLK 36
#endif

static const char *const sources[] = {
    "undecided",
    "limit computed by KAI",
    "annotation gpu-memory",
    "annotation gpu-fraction",
    "environment",
    "no limit asked for",
    "unusable",
};
static const char *const kinds[VGPU_KINDS] = {"context", "module", "buffer"};

static const char *source_name(uint32_t source) {
    return source < sizeof sources / sizeof *sources ? sources[source] : "unknown";
}

/* Returns NULL, or what is wrong with the file. On success the caller owns *region and the descriptor. */
static const char *load(const char *path, struct vgpu_region **region, int *fd) {
    struct stat status;
    *fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &status) != 0) return strerror(errno);
    if (!S_ISREG(status.st_mode)) return "not a regular file";
    if ((uint64_t)status.st_size < VGPU_REGION_BYTES) return "too short for a region";
    *region = malloc(VGPU_REGION_BYTES);
    if (*region == NULL) return "out of host memory";
    if (pread(*fd, *region, VGPU_REGION_BYTES, 0) != (ssize_t)VGPU_REGION_BYTES) return "can't be read whole";
    const struct vgpu_region_header *header = &(*region)->header;
    if (header->magic != VGPU_REGION_MAGIC) return "not a region: its first bytes are others";
    if (header->abi != VGPU_ABI) return "a region of another abi: use the probe of that release";
    if (header->device_bytes != sizeof(struct vgpu_region_device) ||
        header->slot_bytes != sizeof(struct vgpu_region_slot) || header->device_count > VGPU_MAX_DEVICES) {
        return "not a region: its header contradicts its abi";
    }
    return header->ready == 1 ? NULL : "not ready: its creator hasn't filled it, or died at it";
}

/* A process that maps the region holds a lock on its slot's byte, until its memory goes. */
static const char *liveness(int fd, size_t slot) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = VGPU_SLOT_LOCK_OFFSET + (off_t)slot, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return "unknown";
    return lock.l_type == F_UNLCK ? "gone" : "alive";
}

static void format_time(uint64_t unix_ns, char text[32]) {
    time_t seconds = (time_t)(unix_ns / UINT64_C(1000000000));
    struct tm parts;
    snprintf(text, 32, "never");
    if (unix_ns != 0 && gmtime_r(&seconds, &parts) != NULL) strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void print_device(const struct vgpu_region_device *device, unsigned index, struct probe_json *json) {
    char uuid[VGPU_UUID_BYTES + 1] = "";
    char last[32];
    memcpy(uuid, device->uuid, VGPU_UUID_BYTES);
    format_time(device->refused_last_unix_ns, last);
    bool limited = device->limit_bytes != UINT64_MAX;
    if (json->stream == NULL) {
        printf("device %u  %s, a card of %s\n", index, uuid, probe_size_format(device->physical_bytes).text);
        printf("  limit    %s (%s)\n", limited ? probe_size_format(device->limit_bytes).text : "none",
               source_name(device->limit_source));
        if (device->unbelieved_bytes != 0) {
            printf("  ignored  %s: more than the pod's annotation allows\n",
                   probe_size_format(device->unbelieved_bytes).text);
        }
        printf("  used     %s, at most %s\n", probe_size_format(device->used_bytes).text,
               probe_size_format(device->peak_used_bytes).text);
        printf("  refused  %llu requests, the largest %s, the last %s\n", (unsigned long long)device->refusals,
               probe_size_format(device->refused_largest_bytes).text, last);
        return;
    }
    probe_json_begin(json, NULL, '{');
    probe_json_number(json, "index", index);
    probe_json_text(json, "uuid", uuid);
    probe_json_number(json, "physical_bytes", device->physical_bytes);
    if (limited) probe_json_number(json, "limit_bytes", device->limit_bytes);
    if (!limited) probe_json_text(json, "limit_bytes", NULL);
    probe_json_text(json, "limit_source", source_name(device->limit_source));
    probe_json_number(json, "unbelieved_bytes", device->unbelieved_bytes);
    probe_json_number(json, "used_bytes", device->used_bytes);
    probe_json_number(json, "peak_used_bytes", device->peak_used_bytes);
    probe_json_number(json, "refusals", device->refusals);
    probe_json_number(json, "refused_largest_bytes", device->refused_largest_bytes);
    probe_json_number(json, "refused_last_unix_ns", device->refused_last_unix_ns);
    probe_json_end(json, '}');
}

static bool holds_anything(const struct vgpu_region_slot *slot) {
    for (unsigned d = 0; d < VGPU_MAX_DEVICES; d++) {
        for (int k = 0; k < VGPU_KINDS; k++) {
            if (slot->used_bytes[d][k] != 0) return true;
        }
    }
    return false;
}

static void print_slot(const struct vgpu_region_slot *slot, size_t index, const char *alive, unsigned devices,
                       struct probe_json *json) {
    if (json->stream == NULL) printf("slot %-4zu pid %d, %s\n", index, slot->pid, alive);
    probe_json_begin(json, NULL, '{');
    probe_json_number(json, "slot", index);
    probe_json_number(json, "pid", (uint32_t)slot->pid);
    probe_json_text(json, "process", alive);
    probe_json_begin(json, "devices", '[');
    for (unsigned d = 0; d < devices; d++) {
        const uint64_t *used = slot->used_bytes[d];
        if (json->stream == NULL && (used[0] | used[1] | used[2] | slot->launches[d]) != 0) {
            printf("  device %u", d);
            for (int k = 0; k < VGPU_KINDS; k++)
                printf(", %s %s", kinds[k], probe_size_format(used[k]).text);
            printf(", %llu launches\n", (unsigned long long)slot->launches[d]);
        }
        probe_json_begin(json, NULL, '{');
        for (int k = 0; k < VGPU_KINDS; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s_bytes", kinds[k]);
            probe_json_number(json, key, used[k]);
        }
        probe_json_number(json, "launches", slot->launches[d]);
        probe_json_end(json, '}');
    }
    probe_json_end(json, ']');
    probe_json_end(json, '}');
}

int probe_region(const struct probe_options *options) {
    const char *path = options->operands > 0 ? options->operand[0] : VGPU_REGION_DIR "/" VGPU_REGION_FILE;
    struct vgpu_region *region = NULL;
    int fd = -1;
    const char *wrong = load(path, &region, &fd);
    if (wrong != NULL) {
        char reason[512];
        snprintf(reason, sizeof reason, "%s: %s", path, wrong);
        probe_unable(options, reason);
        free(region);
        if (fd >= 0) close(fd);
        return PROBE_UNABLE;
    }
    struct probe_json json = {.stream = options->json ? stdout : NULL};
    unsigned devices = region->header.device_count;
    probe_json_begin(&json, NULL, '{');
    probe_json_text(&json, "file", path);
    probe_json_number(&json, "abi", region->header.abi);
    probe_json_begin(&json, "devices", '[');
    for (unsigned d = 0; d < devices; d++)
        print_device(&region->devices[d], d, &json);
    probe_json_end(&json, ']');
    probe_json_begin(&json, "slots", '[');
    for (size_t i = 0; i < VGPU_MAX_SLOTS; i++) {
        const struct vgpu_region_slot *slot = &region->slots[i];
        if (slot->state == 0) continue;
        const char *alive = liveness(fd, i);
        /* A slot is kept after its process until somebody needs it: nothing of interest. */
        if (strcmp(alive, "gone") != 0 || holds_anything(slot)) print_slot(slot, i, alive, devices, &json);
    }
    probe_json_end(&json, ']');
    probe_json_end(&json, '}');
    probe_json_done(&json);
    free(region);
    close(fd);
    return PROBE_GOOD;
}
