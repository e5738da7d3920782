/* Memory of other processes: IPC handles, VMM allocations that come by a descriptor, pool pointers, memory of a
 * graphics API. Who is charged: share.h. */
#include <string.h>

#include "body.h"
#include "linear.h"
#include "share.h"
#include "syscalls.h"
#include "vmm.h"

/* ---- IPC handles of linear memory ---- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    VGPU_BEGIN(process, real_cuIpcGetMemHandle(pHandle, dptr));
    struct vgpu_entry entry;
    CUdeviceptr base = dptr;
    size_t size = 0;
    CUipcMemHandle handle;
    if (!pHandle) return real_cuIpcGetMemHandle(pHandle, dptr);
    CUresult result = real_cuIpcGetMemHandle(&handle, dptr);
    if (result != CUDA_SUCCESS) return result;
    *pHandle = handle;
    /* Taken out meanwhile: put back when another thread has freed it, it would be given back twice. */
    if (!vgpu_table_take(&process->tables[VGPU_POINTERS], dptr, &entry) &&
        (real_cuMemGetAddressRange_v2(&base, &size, dptr) != CUDA_SUCCESS ||
         !vgpu_table_take(&process->tables[VGPU_POINTERS], base, &entry)))
        return result;
    uint64_t key = vgpu_share_key(&handle, sizeof handle);
    /* A small request's whole block is what others get to hold. */
    uint64_t bytes = entry.bytes ? entry.bytes : VGPU_BLOCK_BYTES;
    if (vgpu_share_publish(process, key, entry.device, bytes, entry.bytes == 0)) {
        struct vgpu_entry exported = {.key = entry.key, .data = key};
        if (entry.bytes)
            entry.data = key;
        else
            vgpu_table_put(&process->tables[VGPU_EXPORTS], &exported);
    }
    vgpu_table_put(&process->tables[VGPU_POINTERS], &entry);
    return result;
}

/* Where the memory lies: not always on the device of the context that it was opened in. */
static int device_of_memory(struct vgpu_process *process, CUdeviceptr pointer, int otherwise) {
    int ordinal = -1;
    return real_cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == CUDA_SUCCESS &&
                   ordinal >= 0 && ordinal < process->cuda_devices
               ? process->index_of[ordinal]
               : otherwise;
}

/* The size shows only once the memory is open; what then doesn't fit is closed again. */
static CUresult opened(struct vgpu_process *process, CUdeviceptr pointer, uint64_t key) {
    struct vgpu_entry import = {.key = pointer, .data = key, .kind = VGPU_KIND_BUFFER};
    struct vgpu_entry known;
    struct vgpu_place place;
    CUdeviceptr base = 0;
    size_t size = 0;
    uint64_t shared_bytes;
    if (vgpu_table_find(&process->tables[VGPU_IMPORTS], pointer, &known)) { /* once more */
        vgpu_table_refer(&process->tables[VGPU_IMPORTS], pointer, 1, NULL, NULL);
        return CUDA_SUCCESS;
    }
    if (vgpu_place_current(process, &place)) {
        import.device = (uint8_t)place.device;
        import.context = place.context;
    }
    import.device = (uint8_t)device_of_memory(process, pointer, import.device);
    if (!vgpu_share_open(process, key, &shared_bytes)) {
        if (real_cuMemGetAddressRange_v2(&base, &size, pointer) != CUDA_SUCCESS) size = VGPU_BLOCK_BYTES;
        uint64_t bytes = vgpu_whole_blocks(size);
        CUresult result = vgpu_charge(process, import.device, VGPU_KIND_BUFFER, bytes);
        if (result != CUDA_SUCCESS) return result;
        /* From another container: charged here once, whoever else here opens it. */
        if (!vgpu_share_publish(process, key, import.device, bytes, false)) {
            import.data = 0;
            import.bytes = bytes;
        }
    }
    return vgpu_table_refer(&process->tables[VGPU_IMPORTS], pointer, 1, &import, NULL) > 0 ? CUDA_SUCCESS
                                                                                           : CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_import_closed(struct vgpu_process *process, const struct vgpu_entry *import) {
    if (import->data) vgpu_share_close(process, import->data);
    vgpu_uncharge(process, import->device, VGPU_KIND_BUFFER, import->bytes);
}

#define OPEN(open)                                                                                                     \
    do {                                                                                                               \
        VGPU_BEGIN(process, open(pdptr, handle, Flags));                                                               \
        CUdeviceptr pointer = 0;                                                                                       \
        if (!pdptr) return open(pdptr, handle, Flags);                                                                 \
        CUresult result = open(&pointer, handle, Flags);                                                               \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        result = opened(process, pointer, vgpu_share_key(&handle, sizeof handle));                                     \
        if (result == CUDA_SUCCESS)                                                                                    \
            *pdptr = pointer;                                                                                          \
        else                                                                                                           \
            real_cuIpcCloseMemHandle(pointer);                                                                         \
        return result;                                                                                                 \
    } while (0)

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    OPEN(real_cuIpcOpenMemHandle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    OPEN(real_cuIpcOpenMemHandle_v2);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    VGPU_BEGIN_RELEASE(process, real_cuIpcCloseMemHandle(dptr));
    struct vgpu_entry import;
    CUresult result = real_cuIpcCloseMemHandle(dptr);
    if (result == CUDA_SUCCESS && vgpu_table_refer(&process->tables[VGPU_IMPORTS], dptr, -1, NULL, &import) == 0)
        vgpu_import_closed(process, &import);
    return result;
}

/* ---- VMM allocations ---- */

/* What passes from process to process, by its type. */
union shareable {
    int fd;
    CUmemFabricHandle fabric;
};

static size_t shareable_bytes(CUmemAllocationHandleType type) {
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? sizeof(int)
           : type == CU_MEM_HANDLE_TYPE_FABRIC              ? sizeof(CUmemFabricHandle)
                                                            : 0;
}

static uint64_t shareable_key(const union shareable *shareable, CUmemAllocationHandleType type) {
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? vgpu_share_key_of_fd(shareable->fd)
           : type == CU_MEM_HANDLE_TYPE_FABRIC ? vgpu_share_key(&shareable->fabric, sizeof shareable->fabric)
                                               : 0;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
    VGPU_BEGIN(process, real_cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags));
    struct vgpu_entry named, allocation;
    union shareable shareable = {.fd = -1};
    size_t bytes = shareable_bytes(handleType);
    if (!shareableHandle || bytes == 0)
        return real_cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemExportToShareableHandle(&shareable, handle, handleType, flags);
    if (result == CUDA_SUCCESS && vgpu_table_find(&process->tables[VGPU_HANDLES], handle, &named) &&
        vgpu_table_find(&process->tables[VGPU_ALLOCATIONS], named.data, &allocation) && allocation.data == 0) {
        uint64_t key = shareable_key(&shareable, handleType);
        if (vgpu_share_publish(process, key, allocation.device, allocation.bytes, false)) {
            allocation.data = key;
            vgpu_table_put(&process->tables[VGPU_ALLOCATIONS], &allocation);
        }
    }
    vgpu_private_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS) memcpy(shareableHandle, &shareable, bytes);
    return result;
}

/* No call tells the size of an allocation that comes from elsewhere, but mapping more of it than there is fails: the
 * most that can be mapped is looked for, in address space that is given back. 0 if it can't be found out: then it is
 * charged when it is mapped. */
static uint64_t size_by_trial(const struct vgpu_process *process, CUmemGenericAllocationHandle handle, int device) {
    CUdeviceptr space = 0;
    uint64_t card_bytes = process->cuda_total_bytes[device];
    uint64_t most = vgpu_whole_blocks(card_bytes ? card_bytes : process->nvml_total_bytes[device]) / VGPU_BLOCK_BYTES;
    uint64_t fits = 0, space_bytes = most * VGPU_BLOCK_BYTES;
    if (!most || real_cuMemAddressReserve(&space, space_bytes, 0, 0, 0) != CUDA_SUCCESS) return 0;
    for (uint64_t trial = 1; fits < most; trial = fits + (most - fits + 1) / 2) {
        if (real_cuMemMap(space, trial * VGPU_BLOCK_BYTES, 0, handle, 0) == CUDA_SUCCESS) {
            real_cuMemUnmap(space, trial * VGPU_BLOCK_BYTES);
            fits = trial;
        } else {
            most = trial - 1;
        }
    }
    real_cuMemAddressFree(space, space_bytes);
    return fits * VGPU_BLOCK_BYTES;
}

/* With vmm_lock. From this container: charged to its owner. From elsewhere: here, once, whoever else here imports it.
 */
static CUresult imported(struct vgpu_process *process, CUmemGenericAllocationHandle handle, int device, uint64_t key) {
    struct vgpu_entry fresh = {.device = (uint8_t)device};
    uint64_t shared_bytes;
    if (vgpu_share_open(process, key, &shared_bytes)) {
        fresh.data = key;
    } else {
        fresh.bytes = size_by_trial(process, handle, device);
        CUresult result = vgpu_charge(process, device, VGPU_KIND_BUFFER, fresh.bytes);
        if (result != CUDA_SUCCESS) return result;
        if (fresh.bytes && vgpu_share_publish(process, key, device, fresh.bytes, false)) fresh.data = key;
    }
    if (vgpu_vmm_enter(process, handle, &fresh)) return CUDA_SUCCESS;
    if (fresh.data)
        vgpu_share_close(process, key);
    else
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, fresh.bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver and the key are shown one and the same: a copy of a handle's bytes, and a descriptor of our own, which no
 * other thread of the program can lead elsewhere. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
    VGPU_BEGIN(process, real_cuMemImportFromShareableHandle(handle, osHandle, shHandleType));
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle imported_handle = 0;
    union shareable shareable = {.fd = -1};
    bool has_fd = shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!handle) return real_cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
    if (has_fd) {
        shareable.fd = vgpu_share_own_fd((int)(intptr_t)osHandle);
        osHandle = (void *)(intptr_t)shareable.fd;
    } else if (shHandleType == CU_MEM_HANDLE_TYPE_FABRIC && osHandle) {
        memcpy(&shareable, osHandle, sizeof shareable.fabric);
        osHandle = &shareable;
    }
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemImportFromShareableHandle(&imported_handle, osHandle, shHandleType);
    if (result == CUDA_SUCCESS &&
        real_cuMemGetAllocationPropertiesFromHandle(&properties, imported_handle) == CUDA_SUCCESS) {
        int device = vgpu_device_of_location(process, &properties.location);
        if (device >= 0) {
            if (vgpu_vmm_of_handle(process, imported_handle)) /* exported or imported here before: used once more */
                vgpu_table_refer(&process->tables[VGPU_HANDLES], imported_handle, 1, NULL, NULL);
            else
                result = imported(process, imported_handle, device, shareable_key(&shareable, shHandleType));
            if (result != CUDA_SUCCESS) real_cuMemRelease(imported_handle);
        }
    }
    vgpu_private_unlock(&process->vmm_lock);
    if (has_fd && shareable.fd >= 0) vgpu_close(shareable.fd);
    if (result == CUDA_SUCCESS) *handle = imported_handle;
    return result;
}

CUresult vgpu_vmm_learn_size(struct vgpu_process *process, uint64_t number, uint64_t bytes) {
    struct vgpu_entry allocation;
    uint64_t whole_bytes = vgpu_whole_blocks(bytes);
    if (!vgpu_table_find(&process->tables[VGPU_ALLOCATIONS], number, &allocation) || allocation.data ||
        allocation.bytes >= whole_bytes)
        return CUDA_SUCCESS;
    CUresult result = vgpu_charge(process, allocation.device, VGPU_KIND_BUFFER, whole_bytes - allocation.bytes);
    if (result == CUDA_SUCCESS) {
        allocation.bytes = whole_bytes;
        vgpu_table_put(&process->tables[VGPU_ALLOCATIONS], &allocation);
    }
    return result;
}

/* ---- memory of pools ---- */

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
    VGPU_BEGIN(process, real_cuMemPoolExportPointer(shareData_out, ptr));
    struct vgpu_entry pooled;
    CUdeviceptr base = 0;
    size_t size = 0;
    CUmemPoolPtrExportData ticket;
    if (!shareData_out) return real_cuMemPoolExportPointer(shareData_out, ptr);
    CUresult result = real_cuMemPoolExportPointer(&ticket, ptr);
    if (result == CUDA_SUCCESS) *shareData_out = ticket;
    if (result == CUDA_SUCCESS && vgpu_table_find(&process->tables[VGPU_POOLED], ptr, &pooled) &&
        real_cuMemGetAddressRange_v2(&base, &size, ptr) == CUDA_SUCCESS) {
        uint64_t key = vgpu_share_key(&ticket, sizeof ticket);
        if (vgpu_share_publish(process, key, pooled.device, vgpu_whole_blocks(size), true)) {
            pooled.bytes = key;
            vgpu_table_put(&process->tables[VGPU_POOLED], &pooled);
        }
    }
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData) {
    VGPU_BEGIN(process, real_cuMemPoolImportPointer(ptr_out, pool, shareData));
    if (!ptr_out || !shareData) return real_cuMemPoolImportPointer(ptr_out, pool, shareData);
    CUmemPoolPtrExportData ticket = *shareData;
    CUdeviceptr pointer = 0;
    CUresult result = real_cuMemPoolImportPointer(&pointer, pool, &ticket);
    if (result != CUDA_SUCCESS) return result;
    result = opened(process, pointer, vgpu_share_key(&ticket, sizeof ticket));
    if (result == CUDA_SUCCESS)
        *ptr_out = pointer;
    else
        real_cuMemFree_v2(pointer);
    return result;
}

/* ---- memory of a graphics API ---- */

/* A descriptor that the driver has taken over is closed. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc) {
    VGPU_BEGIN(process, real_cuImportExternalMemory(extMem_out, memHandleDesc));
    struct vgpu_place place;
    uint64_t shared_bytes, key = 0;
    if (!extMem_out || !memHandleDesc || !vgpu_place_current(process, &place))
        return real_cuImportExternalMemory(extMem_out, memHandleDesc);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC asked = *memHandleDesc;
    CUexternalMemory memory = NULL;
    bool has_fd = asked.type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    int fd = asked.handle.fd;
    if (has_fd) {
        asked.handle.fd = vgpu_share_own_fd(fd);
        key = vgpu_share_key_of_fd(asked.handle.fd);
    }
    uint64_t bytes = vgpu_share_open(process, key, &shared_bytes) ? 0 : vgpu_whole_blocks(asked.size);
    if (bytes) key = 0;
    CUresult result = vgpu_charge(process, place.device, VGPU_KIND_BUFFER, bytes);
    if (result == CUDA_SUCCESS) {
        result = real_cuImportExternalMemory(&memory, &asked);
        if (result != CUDA_SUCCESS) vgpu_uncharge(process, place.device, VGPU_KIND_BUFFER, bytes);
    }
    int done_with = result == CUDA_SUCCESS ? fd : asked.handle.fd;
    if (has_fd && done_with >= 0) vgpu_close(done_with);
    if (result == CUDA_SUCCESS) {
        struct vgpu_entry import = {.bytes = bytes,
                                    .data = key,
                                    .device = (uint8_t)place.device,
                                    .kind = VGPU_KIND_BUFFER,
                                    .context = place.context};
        vgpu_table_refer(&process->tables[VGPU_IMPORTS], (uint64_t)(uintptr_t)memory, 1, &import, NULL);
        *extMem_out = memory;
    } else if (key) {
        vgpu_share_close(process, key);
    }
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
    VGPU_BEGIN_RELEASE(process, real_cuDestroyExternalMemory(extMem));
    struct vgpu_entry import;
    CUresult result = real_cuDestroyExternalMemory(extMem);
    if (result == CUDA_SUCCESS &&
        vgpu_table_refer(&process->tables[VGPU_IMPORTS], (uint64_t)(uintptr_t)extMem, -1, NULL, &import) == 0)
        vgpu_import_closed(process, &import);
    return result;
}
