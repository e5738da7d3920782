/* Memory and semaphores of other programming interfaces. Foreign memory is that interface's: it is mapped, not charged.
 * A descriptor that our own driver exported is the same memory once more. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc.h"

#define MEMORY_MAGIC    0x4578744du
#define SEMAPHORE_MAGIC 0x45787453u

struct CUextMemory_st {
    uint32_t magic;
    int device;
    uint64_t bytes;
    int64_t object;
};

struct CUextSemaphore_st {
    uint32_t magic;
};

CUAPI(cuImportExternalMemory, (CUexternalMemory * result, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)) {
    ENTER_CONTEXT();
    if (!result || !description || description->size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
        description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct share share;
    int fd = description->handle.fd;
    bool own = share_read(fd, SHARE_PHYSICAL, &share) && share.object >= 0;
    if (!own && fcntl(fd, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory memory = calloc(1, sizeof *memory);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->magic = MEMORY_MAGIC;
    memory->device = current_context->device;
    memory->bytes = description->size;
    memory->object = own && sim_object_use(&driver.view, share.object) == 0 ? share.object : -1;
    if (description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) close(fd); /* ownership goes to the driver */
    *result = memory;
    return CUDA_SUCCESS;
}

static bool valid(CUexternalMemory memory) {
    return memory && memory->magic == MEMORY_MAGIC;
}

CUAPI(cuExternalMemoryGetMappedBuffer,
      (CUdeviceptr * pointer, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)) {
    ENTER_CONTEXT();
    if (!valid(memory)) return CUDA_ERROR_INVALID_HANDLE;
    if (!pointer || !description || description->flags || description->size == 0 ||
        description->offset > memory->bytes || description->size > memory->bytes - description->offset)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct memory *record = memory_new(MEMORY_IMPORTED, memory->device, current_context);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (record) {
        record->size = description->size;
        record->blocks = (uint32_t)((description->size + BLOCK - 1) >> BLOCK_SHIFT);
        record->base = arena_take(record->blocks, 1, false);
        if (record->base) {
            arena_set(record->base, record);
            sim_count_request(&driver.view, driver.device[record->device].card, 1);
            *pointer = record->base;
            result = CUDA_SUCCESS;
        } else {
            memory_recycle(record);
        }
    }
    driver_unlock();
    return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *result, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

CUAPI(cuExternalMemoryGetMappedMipmappedArray, (CUmipmappedArray * mipmap, CUexternalMemory memory,
                                                const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description)) {
    ENTER_CONTEXT();
    if (!valid(memory)) return CUDA_ERROR_INVALID_HANDLE;
    if (!mipmap || !description || description->offset >= memory->bytes) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR foreign = description->arrayDesc;
    foreign.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING; /* the memory is there already */
    return cuMipmappedArrayCreate(mipmap, &foreign, description->numLevels);
}

CUAPI(cuDestroyExternalMemory, (CUexternalMemory memory)) {
    ENTER_CONTEXT();
    if (!valid(memory)) return CUDA_ERROR_INVALID_HANDLE;
    if (memory->object >= 0) sim_object_drop(&driver.view, memory->object);
    memory->magic = 0;
    free(memory);
    return CUDA_SUCCESS;
}

CUAPI(cuImportExternalSemaphore, (CUexternalSemaphore * semaphore, const void *description)) {
    ENTER_CONTEXT();
    if (!semaphore || !description) return CUDA_ERROR_INVALID_VALUE;
    *semaphore = calloc(1, sizeof **semaphore);
    if (!*semaphore) return CUDA_ERROR_OUT_OF_MEMORY;
    (*semaphore)->magic = SEMAPHORE_MAGIC;
    return CUDA_SUCCESS;
}

CUAPI(cuDestroyExternalSemaphore, (CUexternalSemaphore semaphore)) {
    ENTER_CONTEXT();
    if (!semaphore || semaphore->magic != SEMAPHORE_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    semaphore->magic = 0;
    free(semaphore);
    return CUDA_SUCCESS;
}

CUAPI(cuSignalExternalSemaphoresAsync,
      (const CUexternalSemaphore *semaphores, const void *parameters, unsigned count, CUstream stream)) {
    (void)stream;
    ENTER_CONTEXT();
    return semaphores && parameters && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuWaitExternalSemaphoresAsync,
      (const CUexternalSemaphore *semaphores, const void *parameters, unsigned count, CUstream stream)) {
    (void)stream;
    ENTER_CONTEXT();
    return semaphores && parameters && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
