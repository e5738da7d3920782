/* Opening, creating and mapping the region's file. */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "share.h"
#include "step.h"
#include "syscalls.h"

#ifndef O_TMPFILE /* Linux 3.11; glibc 2.17's headers are older */
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

#define CREATE_WAIT_NS UINT64_C(100000000)

/* statx() is younger than glibc 2.17; only what is needed of its result is declared here. */
#if defined(__x86_64__)
#define VGPU_SYS_STATX 332
#elif defined(__aarch64__)
#define VGPU_SYS_STATX 291
#endif
#define STATX_MOUNT_ROOT UINT64_C(0x2000)

struct statx_result {
    uint32_t mask, block_bytes;
    uint64_t attributes;
    uint8_t unused0[40];
    uint64_t attributes_known;
    uint8_t unused1[192];
};

bool vgpu_path_is_mount(const char *path) {
    struct statx_result result;
    memset(&result, 0, sizeof result);
    if (syscall(VGPU_SYS_STATX, AT_FDCWD, path, 0, 0, &result) == 0 && (result.attributes_known & STATX_MOUNT_ROOT))
        return (result.attributes & STATX_MOUNT_ROOT) != 0;
    /* Kernels before 5.8: a mount of another file system shows by its device number. */
    char parent[VGPU_PATH_BYTES + 4];
    struct stat here, above;
    size_t length = strlen(path);
    if (length + 4 > sizeof parent) return false;
    memcpy(parent, path, length);
    memcpy(parent + length, "/..", 4);
    return stat(path, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev;
}

/* A file to be opened, or created with this beginning and zeroes after it. */
struct file {
    const char *path;
    struct vgpu_region_rules rules;
    uint64_t bytes;
    const void *header;
    size_t header_bytes;
};

static int check_file(int fd, const struct file *file, struct stat *status, const char **why) {
    if (fstat(fd, status) != 0) {
        *why = "can't look at the region's file";
        return -EIO;
    }
    if (!S_ISREG(status->st_mode)) {
        *why = "the region isn't a regular file";
        return -EPERM;
    }
    if (file->rules.private_to_user && status->st_uid != geteuid()) {
        *why = "the region's file belongs to another user";
        return -EPERM;
    }
    if ((uint64_t)status->st_size != file->bytes) {
        *why = "the region's file has another size than this library's (truncated, or of another release)";
        return -EPROTO;
    }
    return 0;
}

static int check_header(const struct vgpu_region_header *header, const char **why) {
    *why = "the region's file isn't a region";
    if (header->magic != VGPU_REGION_MAGIC || !header->ready) return -EPROTO;
    *why = "the region's file is of another abi than this library";
    if (header->abi != VGPU_ABI || header->header_bytes != sizeof(struct vgpu_region_header) ||
        header->device_bytes != sizeof(struct vgpu_region_device) ||
        header->slot_bytes != sizeof(struct vgpu_region_slot) || header->max_devices != VGPU_MAX_DEVICES ||
        header->max_slots != VGPU_MAX_SLOTS || header->total_bytes != VGPU_REGION_BYTES)
        return -EPROTO;
    return 0;
}

static void fill_header(struct vgpu_region_header *header) {
    memset(header, 0, sizeof *header);
    header->magic = VGPU_REGION_MAGIC;
    header->abi = VGPU_ABI;
    header->header_bytes = sizeof(struct vgpu_region_header);
    header->device_bytes = sizeof(struct vgpu_region_device);
    header->slot_bytes = sizeof(struct vgpu_region_slot);
    header->max_devices = VGPU_MAX_DEVICES;
    header->max_slots = VGPU_MAX_SLOTS;
    header->total_bytes = VGPU_REGION_BYTES;
    header->created_unix_ns = vgpu_clock_ns(CLOCK_REALTIME);
    header->ready = 1;
}

/* Its blocks are reserved now: on a full tmpfs a later store would be SIGBUS. Piece by piece, since a signal ends a
 * call with nothing done. A process that may not write files that long would be sent SIGXFSZ for trying. */
static int fill_file(int fd, const struct file *file) {
    enum { PIECE = 65536 };
    struct rlimit most;
    int error = 0;
    if (fchmod(fd, 0666) != 0) return -errno;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < file->bytes) return -EFBIG;
    for (uint64_t at = 0; at < file->bytes && error == 0; at += PIECE) {
        uint64_t bytes = file->bytes - at < PIECE ? file->bytes - at : PIECE;
        do
            error = posix_fallocate(fd, (off_t)at, (off_t)bytes);
        while (error == EINTR);
    }
    if (error != 0) return -error;
    VGPU_STEP("create-reserved");
    ssize_t written = syscall(SYS_pwrite64, fd, file->header, file->header_bytes, (off_t)0);
    return written == (ssize_t)file->header_bytes ? 0 : written < 0 ? -errno : -ENOSPC;
}

/* Makes the whole file without a name, then links it to its place: no other process ever sees half a region, and a
 * creator that is killed leaves nothing behind. Call with the directory locked. */
static int create_nameless(const struct file *file, const char *directory, const char **why) {
    char self[32];
    *why = "can't create the region's file";
    int fd = vgpu_open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    VGPU_STEP("create-opened");
    *why = "can't fill the region's file (file system full?)";
    int error = fill_file(fd, file);
    if (error == 0) {
        VGPU_STEP("create-filled");
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, self, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) != 0 && errno != EEXIST)
            error = -EOPNOTSUPP; /* no /proc, or not for this user */
        VGPU_STEP("create-linked");
    }
    vgpu_close(fd);
    return error;
}

/* The same under a name of its own, where file system or kernel know no files without one. What killed creators left
 * is removed; in a directory where that isn't allowed to us, the next name is taken. */
static int create_named(const struct file *file, const char **why) {
    char fresh[VGPU_PATH_BYTES + 8];
    int fd = -1;
    for (int attempt = 0; attempt < 10 && fd < 0; attempt++) {
        snprintf(fresh, sizeof fresh, "%s.new%d", file->path, attempt);
        unlink(fresh); /* the directory's lock is ours, so nobody is at work on it */
        fd = vgpu_open(fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        *why = "can't create the region's file";
        return -errno;
    }
    *why = "can't fill the region's file (file system full?)";
    int error = fill_file(fd, file);
    if (error == 0 && link(fresh, file->path) != 0 && errno != EEXIST) {
        *why = "can't put the region's file into its place";
        error = -errno;
    }
    unlink(fresh);
    vgpu_close(fd);
    return error;
}

static int create_file(const struct file *file, const char *directory, const char **why) {
    int error = create_nameless(file, directory, why);
    /* O_TMPFILE includes O_DIRECTORY: what doesn't know it refuses to write to a directory. */
    return error == -EOPNOTSUPP || error == -EISDIR || error == -EINVAL || error == -ENOENT ? create_named(file, why)
                                                                                            : error;
}

static int open_existing(const char *path) {
    int fd = vgpu_open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

/* Serialises creators by a lock on the directory that the kernel drops with its holder. The file is opened without
 * O_CREAT: fs.protected_regular refuses that flag on a file of another uid. */
static int open_or_create(const struct file *file, const char *directory, const char **why) {
    const char *path = file->path;
    int fd = open_existing(path);
    if (fd != -ENOENT) {
        *why = "can't open the region's file";
        return fd;
    }
    int directory_fd = vgpu_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (directory_fd < 0) {
        *why = "can't open the region's directory";
        return -errno;
    }
    uint64_t until_ns = vgpu_clock_ns(CLOCK_MONOTONIC) + CREATE_WAIT_NS;
    while (flock(directory_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) break; /* no such locks here: two may make it, one gets its place */
        if (vgpu_clock_ns(CLOCK_MONOTONIC) > until_ns) {
            *why = "another process has been creating the region's file for 100 ms";
            vgpu_close(directory_fd);
            return -EBUSY;
        }
        vgpu_nap(200000);
    }
    *why = "can't open the region's file";
    fd = open_existing(path);
    if (fd == -ENOENT) {
        int error = create_file(file, directory, why);
        if (error == 0) *why = "can't open the region's file";
        fd = error ? error : open_existing(path);
    }
    vgpu_close(directory_fd);
    return fd;
}

/* Opens or creates, checks and maps. The descriptor, which the caller closes, or -errno. */
static int open_and_map(const struct file *file, struct stat *status, void **memory, const char **why) {
    char directory[VGPU_PATH_BYTES];
    memcpy(directory, file->path, strlen(file->path) + 1);
    char *slash = strrchr(directory, '/');
    slash[slash == directory] = '\0';
    if (file->rules.must_be_mount && !vgpu_path_is_mount(directory)) {
        *why = "the region's directory isn't a mount";
        return -EPERM;
    }
    int fd = open_or_create(file, directory, why);
    if (fd < 0) return fd;
    int error = check_file(fd, file, status, why);
    if (error == 0) {
        *memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (*memory != MAP_FAILED) {
            /* A forked child must not hold the parent's slot by an inherited mapping. */
            madvise(*memory, file->bytes, MADV_DONTFORK);
            return fd;
        }
        *why = "can't map the region's file";
        error = -ENOMEM;
    }
    vgpu_close(fd);
    return error;
}

/* One that was left by a region that is no more names slots that are others' now: it makes room for the next. */
static bool is_left_over(const char *path, const struct stat *status) {
    struct stat now;
    return lstat(path, &now) == 0 && now.st_ino == status->st_ino && now.st_dev == status->st_dev && unlink(path) == 0;
}

/* Who imported whose memory is kept beside the region. Without it every importer is charged. */
static void join_share(struct vgpu_member *member) {
    char path[VGPU_PATH_BYTES];
    struct vgpu_share_header header = {VGPU_SHARE_MAGIC, VGPU_ABI, VGPU_MAX_SHARES,
                                       member->region->header.created_unix_ns, 0};
    const char *why;
    struct stat status;
    void *memory;
    if (snprintf(path, sizeof path, "%s.shares", member->path) >= (int)sizeof path) return;
    struct file file = {path, member->rules, sizeof(struct vgpu_shares), &header, sizeof header};
    for (int attempt = 0; attempt < 2 && !member->shares; attempt++) {
        int fd = open_and_map(&file, &status, &memory, &why);
        if (fd < 0) return;
        vgpu_close(fd);
        if (memcmp(memory, &header, offsetof(struct vgpu_share_header, used)) == 0)
            member->shares = memory;
        else
            munmap(memory, sizeof(struct vgpu_shares));
        if (!member->shares && !is_left_over(path, &status)) return;
    }
}

int vgpu_region_join(struct vgpu_member *member, const char *path, struct vgpu_region_rules rules, const char **why) {
    struct vgpu_region_header header;
    struct stat status;
    void *memory;
    size_t length = strlen(path);
    memset(member, 0, sizeof *member);
    member->rules = rules;
    member->shared = true;
    if (length == 0 || length + 1 > VGPU_PATH_BYTES || path[0] != '/') {
        *why = "the region's path must be absolute and shorter than 256 bytes";
        return -EINVAL;
    }
    memcpy(member->path, path, length + 1);
    fill_header(&header);
    struct file file = {path, rules, VGPU_REGION_BYTES, &header, sizeof header};
    int fd = open_and_map(&file, &status, &memory, why);
    if (fd < 0) return fd;
    member->region = memory;
    member->device = status.st_dev;
    member->inode = status.st_ino;
    int error = check_header(&member->region->header, why);
    if (error == 0) {
        join_share(member);
        error = vgpu_slot_claim(member, fd, why);
    }
    if (error != 0) vgpu_region_leave(member);
    vgpu_close(fd); /* the mapping keeps the open file description, and so the slot's lock */
    return error;
}

int vgpu_region_join_private(struct vgpu_member *member) {
    memset(member, 0, sizeof *member);
    void *memory = mmap(NULL, VGPU_REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return -ENOMEM;
    madvise(memory, VGPU_REGION_BYTES, MADV_DONTFORK);
    member->region = memory;
    fill_header(&member->region->header);
    const char *why;
    return vgpu_slot_claim(member, -1, &why);
}

void vgpu_region_leave(struct vgpu_member *member) {
    if (member->region) munmap(member->region, VGPU_REGION_BYTES);
    member->region = NULL;
}

bool vgpu_region_is_current(const struct vgpu_member *member) {
    struct stat status;
    if (!member->shared) return true;
    if (lstat(member->path, &status) != 0) /* by hand, a program that gave up its rights can't look any more */
        return !member->rules.must_be_mount && errno != ENOENT && errno != ENOTDIR;
    return status.st_dev == member->device && status.st_ino == member->inode &&
           (uint64_t)status.st_size == VGPU_REGION_BYTES;
}
