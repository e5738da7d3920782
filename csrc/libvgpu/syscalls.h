/* System calls as they are. libc's open(), read(), write(), close() and nanosleep() are cancellation points: a thread
 * that the program cancels would end inside them and take our locks with it, in functions of the driver that are no
 * such points. syscall() is none. */
#ifndef VGPU_LIBVGPU_SYSCALLS_H
#define VGPU_LIBVGPU_SYSCALLS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Each returns what the function of libc would, and sets errno. */
static inline int vgpu_open(const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline void vgpu_close(int fd) {
    syscall(SYS_close, fd);
}

static inline ssize_t vgpu_read(int fd, void *buffer, size_t bytes) {
    return syscall(SYS_read, fd, buffer, bytes);
}

static inline ssize_t vgpu_write(int fd, const void *buffer, size_t bytes) {
    return syscall(SYS_write, fd, buffer, bytes);
}

static inline void vgpu_nap(long ns) {
    struct timespec pause = {0, ns};
    syscall(SYS_nanosleep, &pause, NULL);
}

/* Would a short write neither wait nor raise SIGPIPE? A pipe is writable as long as it has room for PIPE_BUF bytes. */
static inline bool vgpu_is_writable(int fd) {
    struct pollfd asked = {.fd = fd, .events = POLLOUT};
    struct timespec at_once = {0, 0};
    return syscall(SYS_ppoll, &asked, 1, &at_once, NULL, 0) == 1 && asked.revents == POLLOUT;
}

#endif
