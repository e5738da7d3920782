#include "context.h"

#include <string.h>

#include "charge.h"
#include "hooks.h"
#include "linear.h"
#include "pool.h"

bool vgpu_place_current(struct vgpu_process *process, struct vgpu_place *place) {
    CUcontext handle = NULL;
    if (real_cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle) return false;
    return vgpu_place_from(process, handle, place);
}

bool vgpu_place_of_stream(struct vgpu_process *process, CUstream stream, struct vgpu_place *place) {
    CUcontext context = NULL;
    bool own = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (own && real_cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context)
        return vgpu_place_from(process, context, place);
    return vgpu_place_current(process, place);
}

int vgpu_device_ordinal(const struct vgpu_process *process, int device) {
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
        if (process->index_of[ordinal] == device) return ordinal;
    return -1;
}

/* A context that was made by a way that isn't hooked: known from now on, charged nothing. Only of the current context
 * the driver tells the device. */
bool vgpu_place_of_unknown(struct vgpu_process *process, CUcontext handle, struct vgpu_place *place) {
    CUcontext current = NULL;
    CUdevice ordinal = -1;
    if (real_cuCtxGetCurrent(&current) != CUDA_SUCCESS) return false;
    bool pushed = current != handle;
    if (pushed && real_cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS) return false;
    CUresult result = real_cuCtxGetDevice(&ordinal);
    if (pushed) real_cuCtxPopCurrent_v2(&current);
    if (result != CUDA_SUCCESS || ordinal < 0 || ordinal >= process->cuda_devices) return false;
    struct vgpu_context context = {.handle = handle, .device = process->index_of[ordinal]};
    place->handle = handle;
    place->device = context.device;
    place->context = vgpu_context_enter(process, &context);
    return true;
}

/* Memory of a kind that this library doesn't know is the card's: better charged to the wrong device than to none. */
int vgpu_device_of_location(struct vgpu_process *process, const CUmemLocation *location) {
    struct vgpu_place place;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return -1;
    default:
        break;
    }
    if (location->id >= 0 && location->id < process->cuda_devices) return process->index_of[location->id];
    return vgpu_place_current(process, &place) ? place.device : process->index_of[0];
}

uint16_t vgpu_context_enter(struct vgpu_process *process, const struct vgpu_context *context) {
    uint16_t number = 0;
    vgpu_private_lock(&process->context_lock);
    for (uint32_t i = 0; i < process->context_count; i++) {
        if (process->contexts[i].handle == context->handle) {
            number = (uint16_t)(i + 1);
            break;
        }
        if (!process->contexts[i].handle && !number) number = (uint16_t)(i + 1);
    }
    if (!number && process->context_count < VGPU_MAX_CONTEXTS) number = (uint16_t)(process->context_count + 1);
    if (number) {
        struct vgpu_context *place = &process->contexts[number - 1];
        CUcontext handle = context->handle;
        *place = *context;
        place->handle = NULL;
        __atomic_store_n(&place->handle, handle, __ATOMIC_RELEASE);
        if (process->context_count < number) __atomic_store_n(&process->context_count, number, __ATOMIC_RELEASE);
    }
    vgpu_private_unlock(&process->context_lock);
    return number;
}

uint16_t vgpu_context_number(const struct vgpu_process *process, CUcontext handle) {
    for (uint32_t i = 0; i < process->context_count; i++)
        if (handle && process->contexts[i].handle == handle) return (uint16_t)(i + 1);
    return 0;
}

uint16_t vgpu_context_primary(const struct vgpu_process *process, int device) {
    for (uint32_t i = 0; i < process->context_count; i++)
        if (process->contexts[i].handle && process->contexts[i].primary && process->contexts[i].device == device)
            return (uint16_t)(i + 1);
    return 0;
}

bool vgpu_context_any(const struct vgpu_process *process, int device) {
    for (uint32_t i = 0; i < process->context_count; i++)
        if (process->contexts[i].handle && process->contexts[i].device == device) return true;
    return process->context_count == VGPU_MAX_CONTEXTS; /* there may have been more than are known */
}

struct death {
    struct vgpu_process *process;
    uint16_t context;
};

static bool dies(const struct vgpu_entry *entry, void *data) {
    return entry->context == ((struct death *)data)->context;
}

static void give_back_array(const struct vgpu_entry *entry, void *data) {
    vgpu_array_freed(((struct death *)data)->process, entry);
}

static void give_back_linear(const struct vgpu_entry *entry, void *data) {
    vgpu_linear_freed(((struct death *)data)->process, entry);
}

static void give_back_import(const struct vgpu_entry *entry, void *data) {
    vgpu_import_closed(((struct death *)data)->process, entry);
}

void vgpu_context_emptied(struct vgpu_process *process, uint16_t number) {
    static const struct {
        enum vgpu_topic topic;
        void (*give_back)(const struct vgpu_entry *entry, void *data);
    } mortal[] = {{VGPU_POINTERS, give_back_linear},
                  {VGPU_ARRAYS, give_back_array},
                  {VGPU_IMPORTS, give_back_import},
                  {VGPU_KERNELS, NULL /* their code is the modules' */}};
    struct death death = {process, number};
    if (number == 0) return;
    for (size_t i = 0; i < sizeof mortal / sizeof *mortal; i++)
        vgpu_table_take_each(&process->tables[mortal[i].topic], dies, mortal[i].give_back, &death);
    struct vgpu_context *context = &process->contexts[number - 1];
    uint64_t limits = __atomic_exchange_n(&context->limit_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&context->local_bytes, 0, __ATOMIC_RELAXED);
    vgpu_uncharge(process, context->device, VGPU_KIND_CONTEXT, limits);
    vgpu_pools_settle(process);
}

void vgpu_context_died(struct vgpu_process *process, uint16_t number) {
    if (number == 0) return;
    vgpu_context_emptied(process, number);
    vgpu_private_lock(&process->context_lock);
    struct vgpu_context gone = process->contexts[number - 1];
    __atomic_store_n(&process->contexts[number - 1].handle, NULL, __ATOMIC_RELEASE);
    vgpu_private_unlock(&process->context_lock);
    if (gone.handle) vgpu_uncharge(process, gone.device, VGPU_KIND_CONTEXT, gone.bytes);
}

void vgpu_context_grew(struct vgpu_process *process, uint16_t number, uint64_t bytes) {
    if (number == 0) return;
    vgpu_private_lock(&process->context_lock);
    process->contexts[number - 1].limit_bytes += bytes;
    vgpu_private_unlock(&process->context_lock);
}

uint64_t vgpu_context_shrank(struct vgpu_process *process, uint16_t number, uint64_t bytes) {
    if (number == 0) return bytes;
    vgpu_private_lock(&process->context_lock);
    uint64_t *charged = &process->contexts[number - 1].limit_bytes;
    if (bytes > *charged) bytes = *charged;
    *charged -= bytes;
    vgpu_private_unlock(&process->context_lock);
    return bytes;
}
