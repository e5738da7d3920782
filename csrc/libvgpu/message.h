/* Lines on stderr: few, whole, and never in the way. A line is one write(2); nothing is buffered, nothing allocated,
 * errno stays as it was. A process gets a handful of lines at once and one a second after that: what a program that
 * asks in a loop would print is counted in the region instead. */
#ifndef VGPU_MESSAGE_H
#define VGPU_MESSAGE_H

#include <stdint.h>

/* Numbers as users of HAMi-core know them from LIBCUDA_LOG_LEVEL: 0 errors only, 1 (default) and 2 also warnings,
 * 3 and more also what was decided and why. */
enum vgpu_level { VGPU_ERROR = 0, VGPU_WARNING = 1, VGPU_INFO = 3 };

/* "libvgpu: <text>". */
void vgpu_message(enum vgpu_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The refusal line that programs and people look for: exactly "Device <index> OOM <asked> / <limit>". */
void vgpu_message_refused(int device_index, uint64_t asked_bytes, uint64_t limit_bytes);

#endif
