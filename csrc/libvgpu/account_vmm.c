/* Virtual memory management: cuMemCreate takes memory of the card, and it is given back when the last handle was
 * released and the last mapping undone, in whatever order.
 *
 * A handle's value can be used again by the driver while a mapping of its old allocation lives on, so allocations have
 * numbers of their own: handle -> number, mapping -> number, number -> bytes and references (each known handle is one,
 * each mapping is one). Addresses and access rights (cuMemAddressReserve, cuMemSetAccess) take nothing. */
#include "body.h"
#include "share.h"
#include "vmm.h"

#define STEP_BYTES UINT64_C(65536) /* no mapping begins between two of these */

static int refer(struct vgpu_process *process, enum vgpu_topic topic, uint64_t key, int difference,
                 const struct vgpu_entry *fresh, struct vgpu_entry *last) {
    return (int)vgpu_table_refer(&process->tables[topic], key, difference, fresh, last);
}

/* With vmm_lock. */
static void drop(struct vgpu_process *process, uint64_t number) {
    struct vgpu_entry allocation;
    if (refer(process, VGPU_ALLOCATIONS, number, -1, NULL, &allocation) != 0) return;
    if (allocation.data)
        vgpu_share_close(process, allocation.data);
    else
        vgpu_uncharge(process, allocation.device, VGPU_KIND_BUFFER, allocation.bytes);
}

/* With vmm_lock. A further use of the handle's value; the first one is a reference to the allocation. */
static bool name(struct vgpu_process *process, CUmemGenericAllocationHandle handle, uint64_t number) {
    struct vgpu_entry fresh = {.data = number};
    int uses = refer(process, VGPU_HANDLES, handle, 1, &fresh, NULL);
    if (uses == 1) return refer(process, VGPU_ALLOCATIONS, number, 1, NULL, NULL) > 0;
    return uses > 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    VGPU_BEGIN(process, real_cuMemCreate(handle, size, prop, flags));
    if (!handle || !prop || size == 0 || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
        prop->location.id >= process->cuda_devices)
        return real_cuMemCreate(handle, size, prop, flags);
    int device = process->index_of[prop->location.id];
    uint64_t charged_bytes = vgpu_whole_blocks(size);
    CUresult result = vgpu_charge(process, device, VGPU_KIND_BUFFER, charged_bytes);
    if (result != CUDA_SUCCESS) return result;
    vgpu_private_lock(&process->vmm_lock);
    result = real_cuMemCreate(handle, size, prop, flags);
    if (result == CUDA_SUCCESS) {
        struct vgpu_entry fresh = {.bytes = charged_bytes, .device = (uint8_t)device};
        uint64_t number = ++process->vmm_number;
        struct vgpu_entry named = {.data = number};
        if (refer(process, VGPU_ALLOCATIONS, number, 1, &fresh, NULL) < 0 ||
            refer(process, VGPU_HANDLES, *handle, 1, &named, NULL) < 0) {
            real_cuMemRelease(*handle);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    vgpu_private_unlock(&process->vmm_lock);
    if (result != CUDA_SUCCESS) vgpu_uncharge(process, device, VGPU_KIND_BUFFER, charged_bytes);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    VGPU_BEGIN_RELEASE(process, real_cuMemRelease(handle));
    struct vgpu_entry named;
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemRelease(handle);
    if (result == CUDA_SUCCESS && refer(process, VGPU_HANDLES, handle, -1, NULL, &named) == 0)
        drop(process, named.data);
    vgpu_private_unlock(&process->vmm_lock);
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    VGPU_BEGIN(process, real_cuMemMap(ptr, size, offset, handle, flags));
    struct vgpu_entry named;
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = CUDA_SUCCESS;
    bool known = vgpu_table_find(&process->tables[VGPU_HANDLES], handle, &named);
    if (known) { /* room first: what the driver has mapped must not be unknown */
        if (vgpu_table_reserve(&process->tables[VGPU_MAPPINGS]) != 0)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else
            result = vgpu_vmm_learn_size(process, named.data, offset + size);
    }
    if (result == CUDA_SUCCESS) result = real_cuMemMap(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && known) {
        struct vgpu_entry mapping = {.key = ptr, .bytes = size, .data = named.data};
        refer(process, VGPU_ALLOCATIONS, named.data, 1, NULL, NULL);
        vgpu_table_put(&process->tables[VGPU_MAPPINGS], &mapping);
    }
    vgpu_private_unlock(&process->vmm_lock);
    return result;
}

/* One call may undo several mappings that lie side by side. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    VGPU_BEGIN_RELEASE(process, real_cuMemUnmap(ptr, size));
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemUnmap(ptr, size);
    struct vgpu_entry mapping;
    for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at - ptr < size;) {
        if (vgpu_table_take(&process->tables[VGPU_MAPPINGS], at, &mapping)) {
            drop(process, mapping.data);
            at += mapping.bytes;
        } else {
            at += STEP_BYTES;
        }
    }
    vgpu_private_unlock(&process->vmm_lock);
    return result;
}

/* The address may lie anywhere in a mapping. */
static bool find_mapping(struct vgpu_process *process, CUdeviceptr address, struct vgpu_entry *mapping) {
    CUdeviceptr base = 0, start = address & ~(STEP_BYTES - 1);
    size_t size = 0;
    if (real_cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS &&
        vgpu_table_find(&process->tables[VGPU_MAPPINGS], base, mapping) && address - base < mapping->bytes)
        return true;
    for (uint64_t steps = 0; steps < (UINT64_C(1) << 22) && start >= STEP_BYTES; steps++, start -= STEP_BYTES)
        if (vgpu_table_find(&process->tables[VGPU_MAPPINGS], start, mapping)) return address - start < mapping->bytes;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    VGPU_BEGIN(process, real_cuMemRetainAllocationHandle(handle, addr));
    struct vgpu_entry mapping;
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemRetainAllocationHandle(handle, addr);
    if (result == CUDA_SUCCESS && find_mapping(process, (CUdeviceptr)(uintptr_t)addr, &mapping))
        name(process, *handle, mapping.data);
    vgpu_private_unlock(&process->vmm_lock);
    return result;
}
