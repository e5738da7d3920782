/* Pinned host memory: allocated or registered, reachable by the card, nothing of the card's own. */
#include <stdlib.h>
#include <sys/mman.h>

#include "copy.h"

struct pinned {
    char *base;
    size_t bytes;
    unsigned flags;
    bool registered; /* the program's own memory */
    CUcontext context;
    struct pinned *next;
};

static struct pinned *list;

static size_t whole_pages(size_t bytes) {
    return (bytes + 4095) & ~(size_t)4095;
}

static CUresult add_locked(void *base, size_t bytes, unsigned flags, bool registered) {
    struct pinned *pinned = malloc(sizeof *pinned);
    if (!pinned) return CUDA_ERROR_OUT_OF_MEMORY;
    *pinned = (struct pinned){.base = base,
                              .bytes = bytes,
                              .flags = flags,
                              .registered = registered,
                              .context = current_context,
                              .next = list};
    list = pinned;
    return CUDA_SUCCESS;
}

static struct pinned *find_locked(const void *address) {
    for (struct pinned *pinned = list; pinned; pinned = pinned->next)
        if ((const char *)address >= pinned->base && (const char *)address < pinned->base + pinned->bytes)
            return pinned;
    return NULL;
}

bool host_find(const void *address, void **base, size_t *bytes) {
    driver_lock();
    const struct pinned *pinned = find_locked(address);
    if (pinned) *base = pinned->base, *bytes = pinned->bytes;
    driver_unlock();
    return pinned != NULL;
}

bool host_find_locked(const void *address, CUdeviceptr *base, size_t *bytes, CUcontext *context) {
    const struct pinned *pinned = find_locked(address);
    if (!pinned) return false;
    *base = (uintptr_t)pinned->base;
    *bytes = pinned->bytes;
    *context = pinned->context;
    return true;
}

static CUresult allocate(void **pointer, size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0 || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    void *base = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    CUresult result = add_locked(base, bytes, flags, false);
    driver_unlock();
    if (result == CUDA_SUCCESS)
        *pointer = base;
    else
        munmap(base, whole_pages(bytes));
    return result;
}

CUAPI(cuMemAllocHost_v2, (void **pointer, size_t bytes)) {
    ENTER_CONTEXT();
    return allocate(pointer, bytes, 0);
}

CUAPI(cuMemAllocHost, (void **pointer, unsigned bytes)) {
    ENTER_CONTEXT();
    return allocate(pointer, bytes, 0);
}

CUAPI(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags)) {
    ENTER_CONTEXT();
    return allocate(pointer, bytes, flags);
}

/* Takes the entry of that base out of the list; NULL if there is none of that sort. */
static struct pinned *take_locked(const void *base, bool registered) {
    for (struct pinned **link = &list; *link; link = &(*link)->next)
        if ((*link)->base == base && (*link)->registered == registered) {
            struct pinned *pinned = *link;
            *link = pinned->next;
            return pinned;
        }
    return NULL;
}

CUAPI(cuMemFreeHost, (void *pointer)) {
    ENTER_CONTEXT();
    driver_lock();
    struct pinned *pinned = take_locked(pointer, false);
    driver_unlock();
    if (!pinned) return CUDA_ERROR_INVALID_VALUE;
    munmap(pinned->base, whole_pages(pinned->bytes));
    free(pinned);
    return CUDA_SUCCESS;
}

static CUresult enlist(void *pointer, size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0 || flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = find_locked(pointer) || find_locked((char *)pointer + bytes - 1)
                          ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                          : add_locked(pointer, bytes, flags, true);
    driver_unlock();
    return result;
}

CUAPI(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags)) {
    ENTER_CONTEXT();
    return enlist(pointer, bytes, flags);
}

CUAPI(cuMemHostRegister, (void *pointer, size_t bytes, unsigned flags)) {
    ENTER_CONTEXT();
    return enlist(pointer, bytes, flags);
}

CUAPI(cuMemHostUnregister, (void *pointer)) {
    ENTER_CONTEXT();
    driver_lock();
    struct pinned *pinned = take_locked(pointer, true);
    driver_unlock();
    free(pinned);
    return pinned ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUAPI(cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void *pointer, unsigned flags)) {
    ENTER_CONTEXT();
    void *base;
    size_t bytes;
    if (!device || flags || !host_find(pointer, &base, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

/* Host addresses don't fit into the 32 bits of this form. */
CUAPI(cuMemHostGetDevicePointer, (CUdeviceptr_v1 * device, void *pointer, unsigned flags)) {
    (void)pointer, (void)flags;
    ENTER_CONTEXT();
    return device ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemHostGetFlags, (unsigned *flags, void *pointer)) {
    ENTER_CONTEXT();
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct pinned *pinned = find_locked(pointer);
    if (pinned) *flags = pinned->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    driver_unlock();
    return pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
