/* Descriptors that stand for memory. */
#include "share.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x657261685373736d)

int share_make(const struct share *share, uint64_t data_bytes) {
    int fd = (int)syscall(SYS_memfd_create, "simgpu", 1u /* close on exec */);
    if (fd < 0) return -errno;
    struct share header = *share;
    header.magic = MAGIC;
    if (ftruncate(fd, (off_t)(SHARE_DATA + data_bytes)) < 0 ||
        pwrite(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

bool share_read(int fd, enum share_kind kind, struct share *share) {
    return pread(fd, share, sizeof *share, 0) == (ssize_t)sizeof *share && share->magic == MAGIC &&
           share->kind == (uint32_t)kind;
}

int device_of_card(uint32_t card) {
    for (int i = 0; i < driver.devices; i++)
        if (driver.device[i].card == card) return i;
    return -1;
}
