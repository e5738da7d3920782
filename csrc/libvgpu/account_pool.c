#include "body.h"
#include "capture.h"
#include "linear.h"
#include "pool.h"
#include "share.h"

#define HOST_POOL 1                   /* entry.data: the pool's memory isn't the card's */
#define ORPHAN    2                   /* the pool was destroyed while memory from it was in use */
#define ORPHANS   (UINT64_C(1) << 63) /* no handle has such a value */

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
    VGPU_CAPTURE_RELAXED;
    uint64_t value = 0;
    return real_cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS ? value : 0;
}

static uint64_t key_of(CUmemoryPool pool) {
    return (uint64_t)(uintptr_t)pool;
}

static CUmemoryPool pool_of(uint64_t key) {
    return (CUmemoryPool)(uintptr_t)key;
}

/* What the pool has reserved. A driver that knows no such pool has freed it; one that can't answer now (after a
 * kernel's fault it answers nothing) still holds what it held. */
static uint64_t reserved_bytes_of(const struct vgpu_entry *pool) {
    VGPU_CAPTURE_RELAXED;
    uint64_t value = 0;
    CUresult result = real_cuMemPoolGetAttribute(pool_of(pool->key), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    if (result == CUDA_SUCCESS) return vgpu_whole_blocks(value);
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ? 0 : pool->bytes;
}

/* With pool_lock. Charges or gives back what the pool's reservation differs from its charge. */
static void settle(struct vgpu_entry *pool, void *data) {
    struct vgpu_process *process = data;
    if (pool->data != 0) return;
    uint64_t reserved = reserved_bytes_of(pool);
    if (reserved < pool->bytes)
        vgpu_uncharge(process, pool->device, VGPU_KIND_BUFFER, pool->bytes - reserved);
    else
        vgpu_charge_anyway(process, pool->device, VGPU_KIND_BUFFER, reserved - pool->bytes);
    pool->bytes = reserved;
}

static bool has_graph_memory(const struct vgpu_process *process) {
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
        if (process->graph_bytes[process->index_of[ordinal]]) return true;
    return false;
}

void vgpu_pools_settle(struct vgpu_process *process) {
    if (__builtin_expect(__atomic_load_n(&process->tables[VGPU_POOLS].count, __ATOMIC_RELAXED) == 0, 1) &&
        !has_graph_memory(process))
        return;
    vgpu_private_lock(&process->pool_lock);
    vgpu_table_each(&process->tables[VGPU_POOLS], settle, process);
    vgpu_graphs_settle(process);
    vgpu_private_unlock(&process->pool_lock);
}

/* With pool_lock. Pools that the driver made by itself are met here for the first time. */
static bool find_pool(struct vgpu_process *process, CUmemoryPool handle, int device, struct vgpu_entry *pool) {
    struct vgpu_table *table = &process->tables[VGPU_POOLS];
    if (vgpu_table_find(table, key_of(handle), pool)) return true;
    *pool = (struct vgpu_entry){.key = key_of(handle), .device = (uint8_t)device, .kind = VGPU_KIND_BUFFER};
    return vgpu_table_put(table, pool) == 0;
}

/* What must be reserved before the driver is asked: at worst the pool grows by the whole request. Where that doesn't
 * fit, the pool may still have room for it. */
static CUresult reserve(struct vgpu_process *process, const struct vgpu_entry *pool, uint64_t bytes,
                        uint64_t *reserved_bytes) {
    CUmemoryPool handle = pool_of(pool->key);
    *reserved_bytes = vgpu_whole_blocks(bytes);
    if (vgpu_charge_quietly(process, pool->device, VGPU_KIND_BUFFER, *reserved_bytes) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    uint64_t held = attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    uint64_t room = held > used ? held - used : 0;
    if (room >= bytes) {
        *reserved_bytes = 0;
        return CUDA_SUCCESS;
    }
    return vgpu_charge(process, pool->device, VGPU_KIND_BUFFER, *reserved_bytes);
}

typedef CUresult (*ask_driver)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);

/* Not in the stream's order if that can be helped: recorded into a capture that another thread has begun, the release
 * would never come about. */
static void release(CUdeviceptr pointer, CUstream stream) {
    if (real_cuMemFree_v2(pointer) != CUDA_SUCCESS) real_cuMemFreeAsync(pointer, stream);
}

/* In a stream that is being captured nothing is allocated now: it becomes a graph's node. If another thread has ended
 * the capture meanwhile, it was allocated after all, which shows in the pool. */
static CUresult allocate(struct vgpu_process *process, CUmemoryPool handle, int device, size_t bytes, CUstream stream,
                         ask_driver ask, bool captured, CUdeviceptr *out) {
    struct vgpu_entry pool;
    uint64_t reserved_bytes = 0;
    CUdeviceptr pointer = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    vgpu_private_lock(&process->pool_lock);
    if (!find_pool(process, handle, device, &pool)) goto done;
    if (pool.data != HOST_POOL && !captured &&
        (result = reserve(process, &pool, bytes, &reserved_bytes)) != CUDA_SUCCESS)
        goto done;
    result = ask(&pointer, bytes, handle, stream);
    if (pool.data == HOST_POOL) goto done;
    uint64_t held = reserved_bytes_of(&pool);
    uint64_t grown = held > pool.bytes ? held - pool.bytes : 0;
    if (vgpu_settle(process, pool.device, VGPU_KIND_BUFFER, reserved_bytes, grown) != CUDA_SUCCESS) {
        VGPU_CAPTURE_RELAXED;
        if (result == CUDA_SUCCESS) release(pointer, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
        real_cuMemPoolTrimTo(handle, pool.bytes);
        held = reserved_bytes_of(&pool);
        if (held > pool.bytes) /* the stream hasn't got to the release yet */
            vgpu_charge_anyway(process, pool.device, VGPU_KIND_BUFFER, held - pool.bytes);
    }
    if (held < pool.bytes) vgpu_uncharge(process, pool.device, VGPU_KIND_BUFFER, pool.bytes - held);
    pool.bytes = held;
    if (result == CUDA_SUCCESS) {
        struct vgpu_entry pooled = {.key = pointer, .data = pool.key, .device = pool.device};
        vgpu_table_put(&process->tables[VGPU_POOLED], &pooled);
        pool.references++;
    }
    vgpu_table_put(&process->tables[VGPU_POOLS], &pool);
done:
    vgpu_private_unlock(&process->pool_lock);
    if (result == CUDA_SUCCESS) *out = pointer;
    return result;
}

void vgpu_pool_freed(struct vgpu_process *process, CUdeviceptr pointer) {
    struct vgpu_entry pooled, pool, import;
    if (!vgpu_table_take(&process->tables[VGPU_POOLED], pointer, &pooled)) {
        if (vgpu_table_refer(&process->tables[VGPU_IMPORTS], pointer, -1, NULL, &import) == 0)
            vgpu_import_closed(process, &import); /* another process's */
        else
            vgpu_pools_settle(process); /* a graph's */
        return;
    }
    if (pooled.bytes) /* the share's number: others may hold it */
        vgpu_share_close(process, pooled.bytes);
    vgpu_private_lock(&process->pool_lock);
    if (vgpu_table_find(&process->tables[VGPU_POOLS], pooled.data, &pool)) {
        pool.references -= pool.references > 0;
        if (pool.data == ORPHAN && pool.references == 0) {
            vgpu_table_take(&process->tables[VGPU_POOLS], pool.key, &pool);
            vgpu_uncharge(process, pool.device, VGPU_KIND_BUFFER, pool.bytes);
        } else {
            settle(&pool, process);
            vgpu_table_put(&process->tables[VGPU_POOLS], &pool);
        }
    }
    vgpu_private_unlock(&process->pool_lock);
}

/* The device's pool of the moment, for the device that the stream is on. The driver is then told to take from just this
 * one, since another thread may give the device another. */
static bool stream_pool(struct vgpu_process *process, CUstream stream, CUmemoryPool *pool, int *device) {
    struct vgpu_place place;
    if (!vgpu_place_of_stream(process, stream, &place)) return false;
    *device = place.device;
    return real_cuDeviceGetMemPool(pool, vgpu_device_ordinal(process, place.device)) == CUDA_SUCCESS;
}

static bool is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return real_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    VGPU_BEGIN(process, real_cuMemAllocAsync(dptr, bytesize, hStream));
    CUmemoryPool pool;
    int device;
    if (!dptr || bytesize == 0 || !stream_pool(process, hStream, &pool, &device))
        return real_cuMemAllocAsync(dptr, bytesize, hStream);
    return allocate(process, pool, device, bytesize, hStream, real_cuMemAllocFromPoolAsync, is_captured(hStream), dptr);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    VGPU_BEGIN(process, real_cuMemAllocAsync_ptsz(dptr, bytesize, hStream));
    CUmemoryPool pool;
    int device;
    if (!dptr || bytesize == 0 || !stream_pool(process, hStream, &pool, &device))
        return real_cuMemAllocAsync_ptsz(dptr, bytesize, hStream);
    return allocate(process, pool, device, bytesize, hStream, real_cuMemAllocFromPoolAsync_ptsz,
                    is_captured(hStream ? hStream : CU_STREAM_PER_THREAD), dptr);
}

/* Where a pool lies that wasn't made under our eyes. */
static int device_of_pool(struct vgpu_process *process, CUmemoryPool pool) {
    struct vgpu_entry known;
    struct vgpu_place place;
    if (vgpu_table_find(&process->tables[VGPU_POOLS], key_of(pool), &known)) return known.device;
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++) {
        CUmemoryPool candidate = NULL;
        if ((real_cuDeviceGetDefaultMemPool(&candidate, ordinal) == CUDA_SUCCESS && candidate == pool) ||
            (real_cuDeviceGetMemPool(&candidate, ordinal) == CUDA_SUCCESS && candidate == pool))
            return process->index_of[ordinal];
    }
    return vgpu_place_current(process, &place) ? place.device : 0;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    VGPU_BEGIN(process, real_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream));
    if (!dptr || bytesize == 0 || !pool) return real_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
    return allocate(process, pool, device_of_pool(process, pool), bytesize, hStream, real_cuMemAllocFromPoolAsync,
                    is_captured(hStream), dptr);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    VGPU_BEGIN(process, real_cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream));
    if (!dptr || bytesize == 0 || !pool) return real_cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream);
    return allocate(process, pool, device_of_pool(process, pool), bytesize, hStream, real_cuMemAllocFromPoolAsync_ptsz,
                    is_captured(hStream ? hStream : CU_STREAM_PER_THREAD), dptr);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    VGPU_BEGIN(process, real_cuMemPoolCreate(pool, poolProps));
    if (!pool || !poolProps) return real_cuMemPoolCreate(pool, poolProps);
    CUmemPoolProps asked = *poolProps;
    CUmemoryPool made = NULL;
    CUresult result = real_cuMemPoolCreate(&made, &asked);
    if (result != CUDA_SUCCESS) return result;
    struct vgpu_entry entry = {.key = key_of(made), .kind = VGPU_KIND_BUFFER};
    int device = vgpu_device_of_location(process, &asked.location);
    if (device < 0)
        entry.data = HOST_POOL;
    else
        entry.device = (uint8_t)device;
    vgpu_private_lock(&process->pool_lock);
    if (vgpu_table_put(&process->tables[VGPU_POOLS], &entry) != 0) {
        real_cuMemPoolDestroy(made);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        vgpu_table_each(&process->tables[VGPU_POOLS], settle, process);
    }
    vgpu_private_unlock(&process->pool_lock);
    if (result == CUDA_SUCCESS) *pool = made;
    return result;
}

struct renaming {
    uint64_t from, to;
};

static void rename_pool_of(struct vgpu_entry *pooled, void *data) {
    const struct renaming *renaming = data;
    if (pooled->data == renaming->from) pooled->data = renaming->to;
}

/* What is in use lives on until it is freed; the pool can't be asked any more. What that is, only the reservation of a
 * trimmed pool tells: the bytes in use leave out what lies between them. The
 * next pool may get the handle of this one, so what stays is kept under another key. */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    VGPU_BEGIN_RELEASE(process, real_cuMemPoolDestroy(pool));
    struct vgpu_entry entry;
    vgpu_private_lock(&process->pool_lock);
    if (pool) real_cuMemPoolTrimTo(pool, 0);
    uint64_t held = vgpu_table_find(&process->tables[VGPU_POOLS], key_of(pool), &entry) ? reserved_bytes_of(&entry) : 0;
    CUresult result = real_cuMemPoolDestroy(pool);
    if (result == CUDA_SUCCESS && vgpu_table_take(&process->tables[VGPU_POOLS], key_of(pool), &entry)) {
        uint64_t stays = entry.data != HOST_POOL && entry.references > 0 ? held : 0;
        if (entry.bytes > stays) vgpu_uncharge(process, entry.device, VGPU_KIND_BUFFER, entry.bytes - stays);
        if (stays) {
            process->charged_ahead = true;
            struct renaming renaming = {entry.key, ORPHANS + ++process->orphan_pools};
            vgpu_table_each(&process->tables[VGPU_POOLED], rename_pool_of, &renaming);
            entry.key = renaming.to;
            entry.bytes = stays;
            entry.data = ORPHAN;
            vgpu_table_put(&process->tables[VGPU_POOLS], &entry);
        }
    }
    vgpu_private_unlock(&process->pool_lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    VGPU_BEGIN_RELEASE(process, real_cuMemPoolTrimTo(pool, minBytesToKeep));
    CUresult result = real_cuMemPoolTrimTo(pool, minBytesToKeep);
    vgpu_pools_settle(process);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    VGPU_BEGIN_RELEASE(process, real_cuMemPoolSetAttribute(pool, attr, value));
    CUresult result = real_cuMemPoolSetAttribute(pool, attr, value);
    vgpu_pools_settle(process);
    return result;
}
