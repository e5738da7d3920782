/* Virtual memory management: cuMemCreate takes memory of the card, and it is given back when the last handle was
 * released and the last mapping undone, in whatever order.
 *
 * A handle's value can be used again by the driver while a mapping of its old allocation lives on, so allocations have
 * numbers of their own: handle -> number, mapping -> number, number -> bytes and references (each known handle is one,
 * each mapping is one). Addresses and access rights (cuMemAddressReserve, cuMemSetAccess) take nothing. */
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "share.h"
#include "vmm.h"

#define STEP_BYTES       UINT64_C(65536) /* no mapping begins between two of these */
#define MULTICAST        0xff            /* entry.kind of an allocation: no memory, but it holds others' */
#define MULTICAST_OBJECT (UINT64_C(1) << 62)

static int refer(struct vgpu_process *process, enum vgpu_topic topic, uint64_t key, int difference,
                 const struct vgpu_entry *fresh, struct vgpu_entry *last) {
    return (int)vgpu_table_refer(&process->tables[topic], key, difference, fresh, last);
}

/* With vmm_lock. */
static void drop(struct vgpu_process *process, uint64_t number) {
    struct vgpu_entry allocation;
    if (refer(process, VGPU_ALLOCATIONS, number, -1, NULL, &allocation) != 0) return;
    if (allocation.kind == MULTICAST)
        vgpu_vmm_let_go(process, number | MULTICAST_OBJECT, -1, 0, UINT64_MAX);
    else if (allocation.data)
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

bool vgpu_vmm_enter(struct vgpu_process *process, CUmemGenericAllocationHandle handle, const struct vgpu_entry *fresh) {
    struct vgpu_entry named = {.data = ++process->vmm_number};
    return refer(process, VGPU_ALLOCATIONS, named.data, 1, fresh, NULL) > 0 &&
           refer(process, VGPU_HANDLES, handle, 1, &named, NULL) > 0;
}

uint64_t vgpu_vmm_of_handle(struct vgpu_process *process, CUmemGenericAllocationHandle handle) {
    struct vgpu_entry named;
    return vgpu_table_find(&process->tables[VGPU_HANDLES], handle, &named) ? named.data : 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    VGPU_BEGIN(process, real_cuMemCreate(handle, size, prop, flags));
    if (!handle || !prop || size == 0) return real_cuMemCreate(handle, size, prop, flags);
    CUmemAllocationProp asked = *prop;
    CUmemGenericAllocationHandle made = 0;
    int device = vgpu_device_of_location(process, &asked.location);
    if (device < 0) return real_cuMemCreate(handle, size, &asked, flags);
    uint64_t charged_bytes = vgpu_whole_blocks(size);
    CUresult result = vgpu_charge(process, device, VGPU_KIND_BUFFER, charged_bytes);
    if (result != CUDA_SUCCESS) return result;
    vgpu_private_lock(&process->vmm_lock);
    result = real_cuMemCreate(&made, size, &asked, flags);
    if (result == CUDA_SUCCESS) {
        struct vgpu_entry fresh = {.bytes = charged_bytes, .device = (uint8_t)device};
        if (!vgpu_vmm_enter(process, made, &fresh)) {
            real_cuMemRelease(made);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    vgpu_private_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS)
        *handle = made;
    else
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, charged_bytes);
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
    /* What the driver calls a range may be several mappings; none begins before it. */
    for (uint64_t steps = 0; steps < (UINT64_C(1) << 22) && start >= STEP_BYTES && start >= base;
         steps++, start -= STEP_BYTES)
        if (vgpu_table_find(&process->tables[VGPU_MAPPINGS], start, mapping)) return address - start < mapping->bytes;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    VGPU_BEGIN(process, real_cuMemRetainAllocationHandle(handle, addr));
    struct vgpu_entry mapping;
    CUmemGenericAllocationHandle retained = 0;
    if (!handle) return real_cuMemRetainAllocationHandle(handle, addr);
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMemRetainAllocationHandle(&retained, addr);
    if (result == CUDA_SUCCESS && find_mapping(process, (CUdeviceptr)(uintptr_t)addr, &mapping))
        name(process, retained, mapping.data);
    vgpu_private_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS) *handle = retained;
    return result;
}

uint64_t vgpu_vmm_of_address(struct vgpu_process *process, CUdeviceptr address) {
    struct vgpu_entry mapping;
    return find_mapping(process, address, &mapping) ? mapping.data : 0;
}

/* ---- what holds allocations besides addresses ---- */

/* Entries of VGPU_HOLDINGS: bytes is the object, data the number of the allocation, references the place in units of
 * 64 KiB (multicast), device the device. */
void vgpu_vmm_hold(struct vgpu_process *process, uint64_t object, int device, uint64_t place, uint64_t number) {
    uint64_t identity[3] = {object, (uint64_t)device, place};
    struct vgpu_entry before, holding = {.key = vgpu_share_key(identity, sizeof identity),
                                         .bytes = object,
                                         .data = number,
                                         .device = (uint8_t)device,
                                         .references = (uint32_t)(place / STEP_BYTES)};
    bool held = vgpu_table_take(&process->tables[VGPU_HOLDINGS], holding.key, &before);
    if (number && refer(process, VGPU_ALLOCATIONS, number, 1, NULL, NULL) > 0)
        vgpu_table_put(&process->tables[VGPU_HOLDINGS], &holding);
    if (held) drop(process, before.data);
}

struct letting_go {
    uint64_t object, place, places;
    int device;
    uint64_t numbers[64];
    uint32_t found;
};

static bool is_held(const struct vgpu_entry *entry, void *data) {
    struct letting_go *going = data;
    return entry->bytes == going->object && (going->device < 0 || entry->device == going->device) &&
           entry->references - going->place / STEP_BYTES < going->places && going->found < 64;
}

static void let_go(const struct vgpu_entry *entry, void *data) {
    struct letting_go *going = data;
    going->numbers[going->found++] = entry->data;
}

void vgpu_vmm_let_go(struct vgpu_process *process, uint64_t object, int device, uint64_t place, uint64_t places) {
    struct letting_go going = {.object = object, .place = place, .places = places, .device = device};
    do {
        going.found = 0;
        vgpu_table_take_each(&process->tables[VGPU_HOLDINGS], is_held, let_go, &going);
        for (uint32_t i = 0; i < going.found; i++)
            drop(process, going.numbers[i]);
    } while (going.found == 64);
}

void vgpu_vmm_forget_array(struct vgpu_process *process, uint64_t array) {
    if (__atomic_load_n(&process->tables[VGPU_HOLDINGS].count, __ATOMIC_RELAXED) == 0) return;
    vgpu_private_lock(&process->vmm_lock);
    vgpu_vmm_let_go(process, array, -1, 0, UINT64_MAX);
    vgpu_private_unlock(&process->vmm_lock);
}

/* Tiles of a sparse array and its mip tail. A place is a box of them: one holds what was mapped into it until just that
 * box is mapped again or unmapped. Part of a box leaves the rest of it where it is, and so all of the allocation. */
static void map_tiles(struct vgpu_process *process, const CUarrayMapInfo *infos, unsigned int count) {
    for (unsigned int i = 0; i < count; i++) {
        const CUarrayMapInfo *info = &infos[i];
        uint64_t array = (uint64_t)(uintptr_t)info->resource.array;
        uint64_t where[9] = {(uint64_t)info->subresourceType};
        if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL) {
            where[1] = info->subresource.sparseLevel.level;
            where[2] = info->subresource.sparseLevel.layer;
            where[3] = info->subresource.sparseLevel.offsetX;
            where[4] = info->subresource.sparseLevel.offsetY;
            where[5] = info->subresource.sparseLevel.offsetZ;
            where[6] = info->subresource.sparseLevel.extentWidth;
            where[7] = info->subresource.sparseLevel.extentHeight;
            where[8] = info->subresource.sparseLevel.extentDepth;
        } else {
            where[1] = info->subresource.miptail.layer;
            where[2] = info->subresource.miptail.offset;
            where[3] = info->subresource.miptail.size;
        }
        bool maps = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        vgpu_vmm_hold(process, array, 0, vgpu_share_key(where, sizeof where),
                      maps ? vgpu_vmm_of_handle(process, info->memHandle.memHandle) : 0);
    }
}

/* The driver gets a copy of the list, which is what is entered. Where only a part of a box was unmapped, more is
 * charged than the card holds. */
static CUresult map_array(CUarrayMapInfo *list, unsigned int count, CUstream stream,
                          CUresult (*real)(CUarrayMapInfo *, unsigned int, CUstream)) {
    VGPU_BEGIN_RELEASE(process, real(list, count, stream));
    if (!list || count == 0) return real(list, count, stream);
    CUarrayMapInfo *asked = malloc(count * sizeof *asked);
    if (!asked) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(asked, list, count * sizeof *asked);
    process->charged_ahead = true;
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real(asked, count, stream);
    if (result == CUDA_SUCCESS) map_tiles(process, asked, count);
    vgpu_private_unlock(&process->vmm_lock);
    free(asked);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
    return map_array(mapInfoList, count, hStream, real_cuMemMapArrayAsync);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
    return map_array(mapInfoList, count, hStream, real_cuMemMapArrayAsync_ptsz);
}

/* ---- multicast objects: no memory of their own, but what is bound to one lives as long as that ---- */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
    VGPU_BEGIN(process, real_cuMulticastCreate(mcHandle, prop));
    struct vgpu_entry fresh = {.kind = MULTICAST};
    CUmemGenericAllocationHandle made = 0;
    if (!mcHandle) return real_cuMulticastCreate(mcHandle, prop);
    vgpu_private_lock(&process->vmm_lock);
    CUresult result = real_cuMulticastCreate(&made, prop);
    if (result == CUDA_SUCCESS && !vgpu_vmm_enter(process, made, &fresh)) {
        real_cuMemRelease(made);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_private_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS) *mcHandle = made;
    return result;
}

static void bind(struct vgpu_process *process, CUmemGenericAllocationHandle object, uint64_t offset, uint64_t number) {
    struct vgpu_entry allocation;
    uint64_t multicast = vgpu_vmm_of_handle(process, object);
    if (multicast && number && vgpu_table_find(&process->tables[VGPU_ALLOCATIONS], number, &allocation))
        vgpu_vmm_hold(process, multicast | MULTICAST_OBJECT, allocation.device, offset, number);
}

#define BIND(call, number)                                                                                             \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE(process, call);                                                                             \
        vgpu_private_lock(&process->vmm_lock);                                                                         \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS) bind(process, mcHandle, mcOffset, number);                                         \
        vgpu_private_unlock(&process->vmm_lock);                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
    BIND(real_cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags),
         vgpu_vmm_of_handle(process, memHandle));
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
    BIND(real_cuMulticastBindMem_v2(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags),
         vgpu_vmm_of_handle(process, memHandle));
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                             unsigned long long flags) {
    BIND(real_cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags), vgpu_vmm_of_address(process, memptr));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                CUdeviceptr memptr, size_t size, unsigned long long flags) {
    BIND(real_cuMulticastBindAddr_v2(mcHandle, dev, mcOffset, memptr, size, flags),
         vgpu_vmm_of_address(process, memptr));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
    VGPU_BEGIN_RELEASE(process, real_cuMulticastUnbind(mcHandle, dev, mcOffset, size));
    vgpu_private_lock(&process->vmm_lock);
    uint64_t multicast = vgpu_vmm_of_handle(process, mcHandle);
    CUresult result = real_cuMulticastUnbind(mcHandle, dev, mcOffset, size);
    if (result == CUDA_SUCCESS && multicast && dev >= 0 && dev < process->cuda_devices)
        vgpu_vmm_let_go(process, multicast | MULTICAST_OBJECT, process->index_of[dev], mcOffset, size / STEP_BYTES);
    vgpu_private_unlock(&process->vmm_lock);
    return result;
}
