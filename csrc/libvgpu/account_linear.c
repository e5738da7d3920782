/* Linear memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree, in all their versions.
 *
 * What the program asks for is rounded as the card rounds it. Managed memory is charged at its full size at once: the
 * card takes it page by page when it is touched, which no library sees. Host memory (cuMemAllocHost, cuMemHostAlloc,
 * cuMemHostRegister) takes nothing of the card and isn't hooked. */
#include "body.h"
#include "linear.h"
#include "pool.h"
#include "share.h"
#include "small.h"

#define PITCH_GRAIN_BYTES                                                                                              \
    512 /* rows start at multiples of it on every card so far; what it really was is asked after */

static CUresult remember(struct vgpu_process *process, const struct vgpu_place *place, CUdeviceptr pointer,
                         uint64_t charged_bytes) {
    struct vgpu_entry entry = {.key = pointer,
                               .bytes = charged_bytes,
                               .device = (uint8_t)place->device,
                               .kind = VGPU_KIND_BUFFER,
                               .context = place->context};
    struct vgpu_entry old;
    int known = vgpu_table_exchange(&process->tables[VGPU_POINTERS], &entry, &old);
    if (__builtin_expect(known == 1, 0)) vgpu_linear_freed(process, &old);
    if (__builtin_expect(known >= 0, 1)) return CUDA_SUCCESS;
    real_cuMemFree_v2(pointer);
    vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, charged_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult small_linear(const void *data, CUdeviceptr *pointer) {
    return real_cuMemAlloc_v2(pointer, *(const size_t *)data);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    VGPU_BEGIN(process, real_cuMemAlloc_v2(dptr, bytesize));
    struct vgpu_place place;
    if (!dptr || bytesize == 0 || !vgpu_place_current(process, &place)) return real_cuMemAlloc_v2(dptr, bytesize);
    if (bytesize <= VGPU_SMALL_BYTES)
        return vgpu_small_allocate(process, &place, bytesize, small_linear, &bytesize, dptr);
    uint64_t charged_bytes = vgpu_whole_blocks(bytesize);
    CUresult result = vgpu_charge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr pointer = 0;
    result = real_cuMemAlloc_v2(&pointer, bytesize);
    if (result != CUDA_SUCCESS) {
        vgpu_uncharge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
        return result;
    }
    result = remember(process, &place, pointer, charged_bytes);
    if (result == CUDA_SUCCESS) *dptr = pointer;
    return result;
}

/* From before CUDA 3.2, with pointers of 32 bits. */
static CUresult small_linear_v1(const void *data, CUdeviceptr *pointer) {
    CUdeviceptr_v1 narrow = 0;
    CUresult result = real_cuMemAlloc(&narrow, *(const unsigned int *)data);
    *pointer = narrow;
    return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
    VGPU_BEGIN(process, real_cuMemAlloc(dptr, bytesize));
    struct vgpu_place place;
    CUdeviceptr pointer = 0;
    CUresult result;
    if (!dptr || bytesize == 0 || !vgpu_place_current(process, &place)) return real_cuMemAlloc(dptr, bytesize);
    if (bytesize <= VGPU_SMALL_BYTES) {
        result = vgpu_small_allocate(process, &place, bytesize, small_linear_v1, &bytesize, &pointer);
    } else {
        uint64_t charged_bytes = vgpu_whole_blocks(bytesize);
        result = vgpu_charge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
        if (result != CUDA_SUCCESS) return result;
        result = small_linear_v1(&bytesize, &pointer);
        if (result == CUDA_SUCCESS)
            result = remember(process, &place, pointer, charged_bytes);
        else
            vgpu_uncharge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
    }
    if (result == CUDA_SUCCESS) *dptr = (CUdeviceptr_v1)pointer;
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    VGPU_BEGIN(process, real_cuMemAllocManaged(dptr, bytesize, flags));
    struct vgpu_place place;
    if (!dptr || bytesize == 0 || !vgpu_place_current(process, &place))
        return real_cuMemAllocManaged(dptr, bytesize, flags);
    process->charged_ahead = true;
    uint64_t charged_bytes = vgpu_whole_blocks(bytesize);
    CUresult result = vgpu_charge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
    if (result != CUDA_SUCCESS) return result;
    CUdeviceptr pointer = 0;
    result = real_cuMemAllocManaged(&pointer, bytesize, flags);
    if (result != CUDA_SUCCESS) {
        vgpu_uncharge(process, place.device, VGPU_KIND_BUFFER, charged_bytes);
        return result;
    }
    result = remember(process, &place, pointer, charged_bytes);
    if (result == CUDA_SUCCESS) *dptr = pointer;
    return result;
}

struct pitched {
    size_t *pitch, width_bytes, height;
    unsigned int element_bytes;
};

static CUresult ask_pitched(const void *data, CUdeviceptr *pointer) {
    const struct pitched *asked = data;
    return real_cuMemAllocPitch_v2(pointer, asked->pitch, asked->width_bytes, asked->height, asked->element_bytes);
}

static uint64_t pitched_bytes(uint64_t width_bytes, uint64_t height) {
    uint64_t bytes;
    if (width_bytes > UINT64_MAX - PITCH_GRAIN_BYTES ||
        __builtin_mul_overflow((width_bytes + PITCH_GRAIN_BYTES - 1) / PITCH_GRAIN_BYTES * PITCH_GRAIN_BYTES, height,
                               &bytes))
        return UINT64_MAX;
    return bytes;
}

/* The form with 32-bit pointers. */
struct pitched_v1 {
    unsigned int *pitch, width_bytes, height, element_bytes;
};

static CUresult ask_pitched_v1(const void *data, CUdeviceptr *pointer) {
    const struct pitched_v1 *asked = data;
    CUdeviceptr_v1 narrow = 0;
    CUresult result =
        real_cuMemAllocPitch(&narrow, asked->pitch, asked->width_bytes, asked->height, asked->element_bytes);
    *pointer = narrow;
    return result;
}

static CUresult allocate_pitched(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                                 uint64_t height, CUresult (*ask)(const void *, CUdeviceptr *), const void *asked,
                                 uint64_t (*pitch_of)(const void *asked), CUdeviceptr *out) {
    if (bytes <= VGPU_SMALL_BYTES) return vgpu_small_allocate(process, place, bytes, ask, asked, out);
    uint64_t reserved_bytes = vgpu_whole_blocks(bytes);
    CUresult result = vgpu_charge(process, place->device, VGPU_KIND_BUFFER, reserved_bytes);
    if (result != CUDA_SUCCESS) return result;
    result = ask(asked, out);
    if (result != CUDA_SUCCESS) {
        vgpu_uncharge(process, place->device, VGPU_KIND_BUFFER, reserved_bytes);
        return result;
    }
    uint64_t taken_bytes = vgpu_whole_blocks(pitch_of(asked) * height);
    result = vgpu_settle(process, place->device, VGPU_KIND_BUFFER, reserved_bytes, taken_bytes);
    if (result != CUDA_SUCCESS) {
        real_cuMemFree_v2(*out);
        return result;
    }
    return remember(process, place, *out, taken_bytes);
}

static uint64_t pitch_of(const void *asked) {
    return *((const struct pitched *)asked)->pitch;
}

static uint64_t pitch_of_v1(const void *asked) {
    return *((const struct pitched_v1 *)asked)->pitch;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
    VGPU_BEGIN(process, real_cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    struct vgpu_place place;
    uint64_t bytes = pitched_bytes(WidthInBytes, Height);
    if (!dptr || !pPitch || bytes == 0 || !vgpu_place_current(process, &place))
        return real_cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    size_t pitch = 0;
    struct pitched asked = {&pitch, WidthInBytes, Height, ElementSizeBytes};
    CUdeviceptr pointer = 0;
    CUresult result = allocate_pitched(process, &place, bytes, Height, ask_pitched, &asked, pitch_of, &pointer);
    if (result != CUDA_SUCCESS) return result;
    *pPitch = pitch;
    *dptr = pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes) {
    VGPU_BEGIN(process, real_cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
    struct vgpu_place place;
    uint64_t bytes = pitched_bytes(WidthInBytes, Height);
    if (!dptr || !pPitch || bytes == 0 || !vgpu_place_current(process, &place))
        return real_cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    unsigned int pitch = 0;
    struct pitched_v1 asked = {&pitch, WidthInBytes, Height, ElementSizeBytes};
    CUdeviceptr pointer = 0;
    CUresult result = allocate_pitched(process, &place, bytes, Height, ask_pitched_v1, &asked, pitch_of_v1, &pointer);
    if (result != CUDA_SUCCESS) return result;
    *pPitch = pitch;
    *dptr = (CUdeviceptr_v1)pointer;
    return CUDA_SUCCESS;
}

/* With data, the memory was exported: others may hold it. */
void vgpu_linear_freed(struct vgpu_process *process, const struct vgpu_entry *entry) {
    if (entry->bytes == 0)
        vgpu_small_freed(process, entry);
    else if (entry->data == 0 || !vgpu_share_close(process, entry->data))
        vgpu_uncharge(process, entry->device, VGPU_KIND_BUFFER, entry->bytes);
}

static void freed(struct vgpu_process *process, const struct vgpu_entry *entry) {
    vgpu_linear_freed(process, entry);
    if (entry->bytes == 0) vgpu_small_true_up(process, entry->device);
}

/* The entry goes first: once the driver has freed the memory, another thread can get the same address. */
#define FREE(pointer, call)                                                                                            \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE(process, call);                                                                             \
        struct vgpu_entry entry;                                                                                       \
        if (!vgpu_table_take(&process->tables[VGPU_POINTERS], pointer, &entry)) {                                      \
            CUresult answer = call;                                                                                    \
            if (answer == CUDA_SUCCESS) vgpu_pool_freed(process, pointer);                                             \
            return answer;                                                                                             \
        }                                                                                                              \
        CUresult result = call;                                                                                        \
        if (result != CUDA_SUCCESS)                                                                                    \
            vgpu_table_put(&process->tables[VGPU_POINTERS], &entry);                                                   \
        else                                                                                                           \
            freed(process, &entry);                                                                                    \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    FREE(dptr, real_cuMemFree_v2(dptr));
}

/* Memory of cuMemAlloc may be freed in stream order too; it counts as free from then on. */
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    FREE(dptr, real_cuMemFreeAsync(dptr, hStream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    FREE(dptr, real_cuMemFreeAsync_ptsz(dptr, hStream));
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
    FREE(dptr, real_cuMemFree(dptr));
}
