/* Pools of another process: the pool goes over as a descriptor, each allocation as 64 bytes. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ipc.h"
#include "pool.h"

static CUresult export_locked(int *fd, CUmemoryPool pool) {
    if (!pool_valid_locked(pool) || pool->imported ||
        !(pool->properties.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned card = driver.device[pool->device].card;
    if (pool->object < 0) pool->object = sim_object_create(&driver.view, card, 0);
    if (pool->object < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *fd = share_make(
        &(struct share){.kind = SHARE_POOL, .card = card, .object = pool->object, .pool = pool->properties}, 0);
    return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUAPI(cuMemPoolExportToShareableHandle,
      (void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)) {
    ENTER();
    if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = export_locked(shareable, pool);
    driver_unlock();
    return result;
}

static CUresult import_locked(CUmemoryPool *pool, int fd) {
    struct share share;
    if (!share_read(fd, SHARE_POOL, &share)) return CUDA_ERROR_INVALID_VALUE;
    int device = device_of_card(share.card);
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (sim_object_use(&driver.view, share.object) < 0) return CUDA_ERROR_INVALID_VALUE;
    share.pool.location.id = device;
    *pool = pool_new_locked(device, &share.pool);
    if (!*pool) return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->imported = true;
    (*pool)->object = share.object;
    return CUDA_SUCCESS;
}

CUAPI(cuMemPoolImportFromShareableHandle,
      (CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)) {
    ENTER();
    if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult result = import_locked(pool, (int)(uintptr_t)shareable);
    driver_unlock();
    return result;
}

CUAPI(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer)) {
    ENTER();
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    struct ticket ticket;
    driver_lock();
    struct memory *memory = memory_find(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (memory && memory->kind == MEMORY_POOL && pool_handle_types(memory->pool))
        result = ticket_write_locked(&ticket, memory, pointer);
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        memset(data, 0, sizeof *data);
        memcpy(data, &ticket, sizeof ticket);
    }
    return result;
}

CUAPI(cuMemPoolImportPointer, (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)) {
    ENTER();
    if (!pointer || !data) return CUDA_ERROR_INVALID_VALUE;
    struct ticket ticket;
    memcpy(&ticket, data, sizeof ticket);
    driver_lock();
    CUresult result = pool_valid_locked(pool) && pool->imported ? ticket_open_locked(pointer, &ticket, pool)
                                                                : CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}
