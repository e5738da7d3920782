#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "syscalls.h"

#define BURST_LINES 8
#define SECOND_NS   UINT64_C(1000000000)

static uint32_t lines_left = BURST_LINES;
static uint64_t refilled_ns;

/* One token a second up to BURST_LINES. Two threads may both refill: one line more is no harm. */
static bool may_write(void) {
    uint64_t now_ns = vgpu_clock_coarse_ns();
    uint64_t before_ns = __atomic_load_n(&refilled_ns, __ATOMIC_RELAXED);
    uint32_t left = __atomic_load_n(&lines_left, __ATOMIC_RELAXED);
    if (left < BURST_LINES && now_ns - before_ns >= SECOND_NS) {
        uint64_t earned = (now_ns - before_ns) / SECOND_NS;
        left = earned > BURST_LINES - left ? BURST_LINES : left + (uint32_t)earned;
        __atomic_store_n(&refilled_ns, now_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&lines_left, left, __ATOMIC_RELAXED);
    }
    if (left == 0) return false;
    if (left == BURST_LINES) __atomic_store_n(&refilled_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lines_left, left - 1, __ATOMIC_RELAXED);
    return true;
}

/* Read each time: a program may set it before its first CUDA call, and lines are rare. */
static int wanted_level(void) {
    const char *text = getenv("LIBCUDA_LOG_LEVEL");
    return text && text[0] >= '0' && text[0] <= '9' ? (int)strtol(text, NULL, 10) : VGPU_WARNING;
}

/* A line that nobody reads is dropped: a full pipe must not stop a program that never wrote to it, nor a broken one end
 * it. */
static void write_line(const char *line, int length, size_t room) {
    size_t bytes = length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
    while (bytes > 0) {
        if (!vgpu_is_writable(STDERR_FILENO)) return;
        ssize_t written = vgpu_write(STDERR_FILENO, line, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        line += written;
        bytes -= (size_t)written;
    }
}

void vgpu_message(enum vgpu_level level, const char *format, ...) {
    int kept_errno = errno;
    if ((int)level <= wanted_level() && may_write()) {
        char text[400], line[420];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        write_line(line, snprintf(line, sizeof line, "libvgpu: %s\n", text), sizeof line);
    }
    errno = kept_errno;
}

void vgpu_message_refused(int device_index, uint64_t asked_bytes, uint64_t limit_bytes) {
    int kept_errno = errno;
    if (may_write()) {
        char line[96];
        write_line(line,
                   snprintf(line, sizeof line, "Device %d OOM %llu / %llu\n", device_index,
                            (unsigned long long)asked_bytes, (unsigned long long)limit_bytes),
                   sizeof line);
    }
    errno = kept_errno;
}
