#include "small.h"

#include "charge.h"
#include "hooks.h"
#include "share.h"

#define GRAIN_BYTES UINT64_C(512)

static uint64_t block_of(uint64_t pointer) {
    return pointer & ~(VGPU_BLOCK_BYTES - 1);
}

static uint64_t grains(uint64_t bytes) {
    return (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
}

/* With small_lock held, so that a block that another thread has just seen isn't given back under it. */
static CUresult account(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                        CUdeviceptr pointer, bool charged) {
    struct vgpu_entry block = {.device = (uint8_t)place->device, .kind = VGPU_KIND_BUFFER};
    struct vgpu_entry request = {.key = pointer,
                                 .data = bytes,
                                 .device = (uint8_t)place->device,
                                 .kind = VGPU_KIND_BUFFER,
                                 .context = place->context};
    uint64_t *free_bytes = &process->small_free_bytes[place->device];
    struct vgpu_table *blocks = &process->tables[VGPU_BLOCKS];
    int64_t references = vgpu_table_refer(blocks, block_of(pointer), 1, &block, NULL);
    if (references < 0) {
        if (charged) vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (references == 1 && !charged) {
        if (vgpu_charge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES) != CUDA_SUCCESS) {
            vgpu_table_refer(blocks, block_of(pointer), -1, NULL, NULL);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else if (references > 1 && charged) {
        vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
    }
    if (vgpu_table_put(&process->tables[VGPU_POINTERS], &request) != 0) {
        if (vgpu_table_refer(blocks, block_of(pointer), -1, NULL, NULL) == 0)
            vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    __atomic_add_fetch(free_bytes, references == 1 ? VGPU_BLOCK_BYTES - grains(bytes) : -grains(bytes),
                       __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult vgpu_small_allocate(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                             CUresult (*allocate)(const void *data, CUdeviceptr *pointer), const void *data,
                             CUdeviceptr *out) {
    CUdeviceptr pointer = 0;
    CUresult result = CUDA_SUCCESS;
    vgpu_private_lock(&process->small_lock);
    /* Only a guess at whether a new block is needed; what the driver did is looked at afterwards. */
    bool charged = __atomic_load_n(&process->small_free_bytes[place->device], __ATOMIC_RELAXED) < grains(bytes);
    if (charged) result = vgpu_charge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
    if (result == CUDA_SUCCESS) {
        result = allocate(data, &pointer);
        if (result != CUDA_SUCCESS) {
            if (charged) vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
        } else {
            result = account(process, place, bytes, pointer, charged);
            if (result == CUDA_SUCCESS)
                *out = pointer;
            else
                real_cuMemFree_v2(pointer);
        }
    }
    vgpu_private_unlock(&process->small_lock);
    return result;
}

void vgpu_small_freed(struct vgpu_process *process, const struct vgpu_entry *entry) {
    struct vgpu_entry last, exported;
    /* Who imported it keeps the whole block, and is charged before we aren't. */
    if (vgpu_table_take(&process->tables[VGPU_EXPORTS], entry->key, &exported))
        vgpu_share_close(process, exported.data);
    int64_t references = vgpu_table_refer(&process->tables[VGPU_BLOCKS], block_of(entry->key), -1, NULL, &last);
    if (references < 0) return;
    if (references == 0) vgpu_uncharge(process, entry->device, VGPU_KIND_BUFFER, VGPU_BLOCK_BYTES);
    __atomic_sub_fetch(&process->small_free_bytes[entry->device],
                       references == 0 ? VGPU_BLOCK_BYTES - grains(entry->data) : -grains(entry->data),
                       __ATOMIC_RELAXED);
}
