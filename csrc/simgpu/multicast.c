/* Multicast objects: one address for memory of several cards. They hold memory that is bound to them, none of their
 * own. Only on cards of compute capability 9 and more. */
#include <stdlib.h>

#include "vmm.h"

struct binding {
    int device;
    uint64_t offset, bytes;
    struct physical *physical;
    struct binding *next;
};

static bool supported(void) {
    for (int i = 0; i < driver.devices; i++)
        if (card_config(i)->compute_major >= 9) return true;
    return false;
}

static CUresult check(const CUmulticastObjectProp *properties) {
    if (!supported()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!properties || properties->numDevices == 0 || properties->size == 0 || properties->flags)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUAPI(cuMulticastGetGranularity, (size_t *bytes, const CUmulticastObjectProp *properties, int option)) {
    (void)option;
    ENTER();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    TRY(check(properties));
    *bytes = BLOCK;
    return CUDA_SUCCESS;
}

CUAPI(cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *properties)) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    TRY(check(properties));
    if (!granular(properties->size)) return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp own = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    driver_lock();
    struct physical *physical = physical_new_locked(-1, properties->size, &own);
    if (physical) {
        physical->multicast = true;
        physical->devices = properties->numDevices;
        *handle = physical->handle;
    }
    driver_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Begins a function about one multicast object: the lock is held where this succeeds. */
static CUresult enter(CUmemGenericAllocationHandle handle, struct physical **object) {
    driver_lock();
    *object = physical_find_locked(handle);
    if (*object && (*object)->multicast) return CUDA_SUCCESS;
    driver_unlock();
    return CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct physical *object;
    TRY(enter(handle, &object));
    uint32_t bit = 1u << device;
    bool room = !(object->joined & bit) && (unsigned)__builtin_popcount(object->joined) < object->devices;
    if (room) object->joined |= bit;
    driver_unlock();
    return room ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind_locked(struct physical *object, uint64_t offset, struct physical *physical, uint64_t from,
                            uint64_t bytes) {
    if (!physical || physical->device < 0 || !(object->joined >> physical->device & 1) || !granular(bytes) ||
        offset + bytes > object->bytes || from + bytes > physical->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct binding *binding = calloc(1, sizeof *binding);
    if (!binding) return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct binding){
        .device = physical->device, .offset = offset, .bytes = bytes, .physical = physical, .next = object->bindings};
    object->bindings = binding;
    physical->maps++;
    return CUDA_SUCCESS;
}

CUAPI(cuMulticastBindMem, (CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                           size_t from, size_t bytes, unsigned long long flags)) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    struct physical *object;
    TRY(enter(handle, &object));
    CUresult result = bind_locked(object, offset, physical_find_locked(memory), from, bytes);
    driver_unlock();
    return result;
}

CUAPI(cuMulticastBindAddr, (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address, size_t bytes,
                            unsigned long long flags)) {
    ENTER();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    struct physical *object;
    TRY(enter(handle, &object));
    uint64_t from = 0;
    struct physical *physical = physical_at_locked(address, &from);
    CUresult result = bind_locked(object, offset, physical, from, bytes);
    driver_unlock();
    return result;
}

static void unbind_locked(struct physical *object, int device, uint64_t offset, uint64_t bytes) {
    for (struct binding **link = &object->bindings; *link;) {
        struct binding *binding = *link;
        if (binding->device != device || binding->offset < offset || binding->offset >= offset + bytes) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        binding->physical->maps--;
        physical_settle_locked(binding->physical);
        free(binding);
    }
}

CUAPI(cuMulticastUnbind, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes)) {
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct physical *object;
    TRY(enter(handle, &object));
    unbind_locked(object, device, offset, bytes);
    driver_unlock();
    return CUDA_SUCCESS;
}

void multicast_release_locked(struct physical *object) {
    for (int device = 0; device < driver.devices; device++)
        unbind_locked(object, device, 0, UINT64_MAX);
}
