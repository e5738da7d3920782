/* The pool functions of the driver: allocate and free in stream order, create, trim, attributes. */
#include <string.h>

#include "ipc.h"
#include "pool.h"
#include "stream.h"

CUmemoryPool pool_of_stream(CUstream stream) {
    return driver.device[stream_context(stream)->device].current_pool;
}

static CUresult allocate_async(CUdeviceptr *pointer, uint64_t bytes, CUmemoryPool pool, CUstream stream) {
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    TRY(stream_check(stream));
    if (bytes > UINT64_C(1) << 46) return CUDA_ERROR_OUT_OF_MEMORY;
    struct capture *capture = stream_capture(stream);
    if (UNLIKELY(capture != NULL)) return capture_allocation(capture, pointer, bytes, pool, stream);
    return pool_allocate(pointer, bytes, pool ? pool : pool_of_stream(stream));
}

CUAPI(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream)) {
    ENTER_CONTEXT();
    return allocate_async(pointer, bytes, NULL, stream);
}

CUAPI(cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream)) {
    ENTER_CONTEXT();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate_async(pointer, bytes, pool, stream);
}

CUAPI(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    struct capture *capture = stream_capture(stream);
    if (UNLIKELY(capture != NULL)) return capture_free(capture, pointer);
    driver_lock();
    struct memory *memory = memory_find(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (memory && memory->base == pointer) {
        if (memory->kind == MEMORY_POOL) {
            pool_memory_give_locked(memory);
            result = CUDA_SUCCESS;
        } else if (memory->kind == MEMORY_GRAPH) {
            result = graph_memory_free_locked(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (memory && memory->kind == MEMORY_IMPORTED && ticket_close_locked(pointer, true)) result = CUDA_SUCCESS;
    driver_unlock();
    return result;
}

CUAPI(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties)) {
    ENTER();
    if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
    CUmemLocation where = properties->location;
    bool managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!managed && properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    /* Managed memory may prefer any place or none; the harshest case is simulated: all of it is on the card at once. */
    if (managed && where.type != CU_MEM_LOCATION_TYPE_DEVICE) where = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0};
    bool host = where.type == CU_MEM_LOCATION_TYPE_HOST || where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!host && (where.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(where.id)))
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    driver_lock();
    *pool = pool_new_locked(host ? 0 : where.id, properties);
    if (*pool) (*pool)->host = host;
    driver_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Begins a function about one pool: the lock is held where this succeeds. */
static CUresult pool_enter(CUmemoryPool pool) {
    driver_lock();
    if (pool_valid_locked(pool)) return CUDA_SUCCESS;
    driver_unlock();
    return CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemPoolDestroy, (CUmemoryPool pool)) {
    ENTER();
    TRY(pool_enter(pool));
    CUresult result = pool->standard ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        for (int i = 0; i < driver.devices; i++) {
            struct device *device = &driver.device[i];
            if (device->current_pool == pool) device->current_pool = device->default_pool;
            if (device->managed_pool == pool) device->managed_pool = device->managed_default_pool;
        }
        pool->doomed = true;
        pool_bury_locked(pool);
    }
    driver_unlock();
    return result;
}

CUAPI(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes)) {
    ENTER();
    FORBIDDEN_IN_CAPTURE();
    TRY(pool_enter(pool));
    pool_trim_locked(pool, keep_bytes);
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    uint64_t number;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        number = pool->threshold_bytes;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        number = pool->reserved_blocks << BLOCK_SHIFT;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        number = pool->reserved_high_blocks << BLOCK_SHIFT;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        number = pool->used_bytes;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        number = pool->used_high_bytes;
        break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        *(int *)value = (int)pool->properties.allocType;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
        *(int *)value = (int)pool->properties.handleTypes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
        *(int *)value = pool->properties.location.id;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        *(int *)value = (int)pool->properties.location.type;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
        number = pool->properties.maxSize;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
}

CUAPI(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) {
    ENTER();
    FORBIDDEN_IN_CAPTURE();
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    TRY(pool_enter(pool));
    CUresult result = get_attribute(pool, attribute, value);
    driver_unlock();
    return result;
}

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value) {
    uint64_t number;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&pool->threshold_bytes, value, sizeof number);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* can only be reset */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        memcpy(&number, value, sizeof number);
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high_bytes = pool->used_bytes;
        else
            pool->reserved_high_blocks = pool->reserved_blocks;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUAPI(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) {
    ENTER();
    FORBIDDEN_IN_CAPTURE();
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    TRY(pool_enter(pool));
    CUresult result = set_attribute(pool, attribute, value);
    driver_unlock();
    return result;
}

CUAPI(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)) {
    ENTER();
    if (!access && count) return CUDA_ERROR_INVALID_VALUE;
    TRY(pool_enter(pool));
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        bool device = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        if (device && !device_valid(access[i].location.id))
            result = CUDA_ERROR_INVALID_DEVICE;
        else if (device && access[i].location.id == pool->device && !pool->host &&
                 access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            result = CUDA_ERROR_INVALID_VALUE; /* the owner can't be locked out */
        else if (device)
            pool->access[access[i].location.id] = access[i].flags;
    }
    driver_unlock();
    return result;
}

CUAPI(cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *location)) {
    ENTER();
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    TRY(pool_enter(pool));
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_valid(location->id)) {
        *flags = pool->access[location->id];
        result = CUDA_SUCCESS;
    }
    driver_unlock();
    return result;
}

CUAPI(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device)) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = driver.device[device].default_pool;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device)) {
    ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = driver.device[device].current_pool;
    return CUDA_SUCCESS;
}

static CUresult set_pool(int device, CUmemAllocationType type, CUmemoryPool pool) {
    TRY(pool_enter(pool));
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    bool fits = pool->device == device && !pool->host && !pool->imported && pool->properties.allocType == type;
    CUresult result = fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (fits && managed) driver.device[device].managed_pool = pool;
    if (fits && !managed) driver.device[device].current_pool = pool;
    driver_unlock();
    return result;
}

CUAPI(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return set_pool(device, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

/* The forms of CUDA 13 name a location and a type of memory instead of a device. Managed memory needs no place. */
static CUresult located(const CUmemLocation *location, CUmemAllocationType type, int *device) {
    *device = 0;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) {
        if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
    } else if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    *device = location->id;
    return device_valid(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* The device's standing pool of managed memory is made when it is first asked for. */
static CUresult standing(int device, CUmemAllocationType type) {
    struct device *target = &driver.device[device];
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_SUCCESS;
    driver_lock();
    if (!target->managed_default_pool) {
        CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
        target->managed_default_pool = target->managed_pool = pool_new_locked(device, &properties);
        if (target->managed_default_pool) target->managed_default_pool->standard = true;
    }
    driver_unlock();
    return target->managed_default_pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type)) {
    ENTER();
    int device;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    TRY(located(location, type, &device));
    TRY(standing(device, type));
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    *pool = managed ? driver.device[device].managed_default_pool : driver.device[device].default_pool;
    return CUDA_SUCCESS;
}

CUAPI(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type)) {
    ENTER();
    int device;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    TRY(located(location, type, &device));
    TRY(standing(device, type));
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    *pool = managed ? driver.device[device].managed_pool : driver.device[device].current_pool;
    return CUDA_SUCCESS;
}

CUAPI(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool)) {
    ENTER();
    int device;
    TRY(located(location, type, &device));
    TRY(standing(device, type));
    return set_pool(device, type, pool);
}
