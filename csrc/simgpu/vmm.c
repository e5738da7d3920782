/* Virtual memory management, physical side: create, retain, release, export, import. */
#include "vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Handles are a place in a table and the number of its use, so that a stale one is told. */
static struct entry {
    struct physical *physical;
    uint32_t uses;
    uint32_t next_free;
} *table;
static uint32_t table_size, table_free = UINT32_MAX;

static bool enter(struct physical *physical) {
    if (table_free == UINT32_MAX) {
        uint32_t size = table_size ? table_size * 2 : 256;
        struct entry *larger = realloc(table, size * sizeof *table);
        if (!larger) return false;
        table = larger;
        for (uint32_t i = size; i-- > table_size;) {
            table[i] = (struct entry){.next_free = table_free};
            table_free = i;
        }
        table_size = size;
    }
    uint32_t place = table_free;
    table_free = table[place].next_free;
    table[place].physical = physical;
    table[place].uses++;
    physical->handle = (uint64_t)table[place].uses << 32 | (place + 1);
    return true;
}

struct physical *physical_find_locked(CUmemGenericAllocationHandle handle) {
    uint32_t place = (uint32_t)handle - 1;
    if (place >= table_size || table[place].uses != (uint32_t)(handle >> 32)) return NULL;
    struct physical *physical = table[place].physical;
    return physical && physical->references ? physical : NULL;
}

struct physical *physical_new_locked(int device, uint64_t bytes, const CUmemAllocationProp *properties) {
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical || !enter(physical)) {
        free(physical);
        return NULL;
    }
    physical->device = device;
    physical->bytes = bytes;
    physical->properties = *properties;
    physical->references = 1;
    physical->object = -1;
    physical->fd = -1;
    return physical;
}

/* Data of memory that is never exported lies in one file of the process: descriptors are few, mappings are many. */
static int common_fd = -1;
static uint64_t common_top;

static uint64_t common_take(uint64_t bytes) {
    if (common_fd < 0) common_fd = (int)syscall(SYS_memfd_create, "simgpu-memory", 1u);
    uint64_t offset = common_top;
    if (common_fd < 0 || ftruncate(common_fd, (off_t)(common_top + bytes)) < 0) return UINT64_MAX;
    common_top += bytes;
    return offset;
}

void physical_settle_locked(struct physical *physical) {
    if (physical->references || physical->maps) return;
    if (physical->multicast) multicast_release_locked(physical);
    if (physical->object >= 0)
        sim_object_drop(&driver.view, physical->object);
    else if (physical->device >= 0 && !physical->multicast)
        sim_uncharge(&driver.view, driver.device[physical->device].card, SIM_DATA, physical->bytes, 1);
    if (physical->object >= 0 && physical->device >= 0)
        sim_count_request(&driver.view, driver.device[physical->device].card, -1);
    if (physical->fd >= 0)
        close(physical->fd);
    else if (physical->offset != UINT64_MAX && common_fd >= 0 && !physical->multicast)
        fallocate(common_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset,
                  (off_t)physical->bytes);
    uint32_t place = (uint32_t)physical->handle - 1;
    table[place].physical = NULL;
    table[place].next_free = table_free;
    table_free = place;
    free(physical);
}

void physical_show(const struct physical *physical, CUdeviceptr at, uint64_t offset, uint64_t bytes) {
    int fd = physical->fd >= 0 ? physical->fd : common_fd;
    if (physical->multicast || physical->offset == UINT64_MAX || fd < 0) return;
    /* Without it the addresses stay what they are, zero pages: the accounting doesn't depend on data. */
    mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
         (off_t)(physical->offset + offset));
}

/* The device of a location, -1 for host memory, -2 for what can't be. */
static int device_at(const CUmemAllocationProp *properties) {
    switch (properties->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_valid(properties->location.id) ? properties->location.id : -2;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return -1;
    default:
        return -2;
    }
}

static CUresult check(const CUmemAllocationProp *properties, int *device) {
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    *device = device_at(properties);
    if (*device == -2)
        return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                        : CUDA_ERROR_INVALID_VALUE;
    if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUAPI(cuMemGetAllocationGranularity,
      (size_t *bytes, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option)) {
    ENTER();
    int device;
    if (!bytes || (int)option < 0 || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
    TRY(check(properties, &device));
    *bytes = BLOCK;
    return CUDA_SUCCESS;
}

static CUresult create_locked(CUmemGenericAllocationHandle *handle, int device, uint64_t bytes,
                              const CUmemAllocationProp *properties) {
    struct physical *physical = physical_new_locked(device, bytes, properties);
    if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
    if (device >= 0 && sim_charge(&driver.view, driver.device[device].card, SIM_DATA, bytes, 1) < 0) {
        physical->device = -1; /* nothing to give back */
        physical->offset = UINT64_MAX;
        physical->references = 0;
        physical_settle_locked(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (properties->requestedHandleTypes) {
        physical->offset = SHARE_DATA;
        physical->fd = share_make(&(struct share){.kind = SHARE_PHYSICAL,
                                                  .card = device >= 0 ? driver.device[device].card : UINT32_MAX,
                                                  .object = -1,
                                                  .bytes = bytes,
                                                  .physical = *properties},
                                  bytes);
    } else {
        physical->offset = common_take(bytes);
    }
    *handle = physical->handle;
    return CUDA_SUCCESS;
}

CUAPI(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties,
                    unsigned long long flags)) {
    ENTER();
    int device;
    if (!handle || flags || !granular(bytes)) return CUDA_ERROR_INVALID_VALUE;
    TRY(check(properties, &device));
    if (bytes > UINT64_C(1) << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    CUresult result = create_locked(handle, device, bytes, properties);
    driver_unlock();
    return result;
}

CUAPI(cuMemRelease, (CUmemGenericAllocationHandle handle)) {
    ENTER();
    driver_lock();
    struct physical *physical = physical_find_locked(handle);
    if (physical) {
        physical->references--;
        physical_settle_locked(physical);
    }
    driver_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle)) {
    ENTER();
    if (!properties) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct physical *physical = physical_find_locked(handle);
    if (physical) *properties = physical->properties;
    driver_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---- */

static CUresult export_locked(int *fd, struct physical *physical) {
    if (!physical->properties.requestedHandleTypes || physical->fd < 0) return CUDA_ERROR_INVALID_VALUE;
    if (physical->object < 0 && physical->device >= 0 && !physical->multicast) {
        int64_t object = sim_object_create(&driver.view, driver.device[physical->device].card, physical->bytes);
        if (object < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        physical->object = object;
        if (pwrite(physical->fd, &object, sizeof object, offsetof(struct share, object)) != (ssize_t)sizeof object)
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
    return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUAPI(cuMemExportToShareableHandle, (void *shareable, CUmemGenericAllocationHandle handle,
                                     CUmemAllocationHandleType type, unsigned long long flags)) {
    ENTER();
    if (!shareable || flags) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    driver_lock();
    struct physical *physical = physical_find_locked(handle);
    CUresult result = physical ? export_locked(shareable, physical) : CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

static struct physical *find_object_locked(int64_t object) {
    for (uint32_t i = 0; i < table_size; i++)
        if (table[i].physical && table[i].physical->object == object) return table[i].physical;
    return NULL;
}

static CUresult import_locked(CUmemGenericAllocationHandle *handle, int fd) {
    struct share share;
    if (!share_read(fd, SHARE_PHYSICAL, &share)) return CUDA_ERROR_INVALID_VALUE;
    int device = share.card == UINT32_MAX ? -1 : device_of_card(share.card);
    if (share.card != UINT32_MAX && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    struct physical *known = share.object >= 0 ? find_object_locked(share.object) : NULL;
    if (known) {
        known->references++;
        *handle = known->handle;
        return CUDA_SUCCESS;
    }
    if (share.object >= 0 && sim_object_use(&driver.view, share.object) < 0) return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = physical_new_locked(device, share.bytes, &share.physical);
    if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->object = share.object;
    physical->offset = SHARE_DATA;
    physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (device >= 0) sim_count_request(&driver.view, driver.device[device].card, 1);
    *handle = physical->handle;
    return CUDA_SUCCESS;
}

CUAPI(cuMemImportFromShareableHandle,
      (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type)) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    driver_lock();
    CUresult result = import_locked(handle, (int)(uintptr_t)shareable);
    driver_unlock();
    return result;
}
