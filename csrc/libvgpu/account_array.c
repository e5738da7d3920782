/* Arrays and mipmapped arrays. The card lays them out in tiles (block linear). What that takes the driver tells of an
 * array whose memory is to be mapped later, which takes none; to whole 64 KiB, so what is computed here counts where it
 * comes to the same. Arrays below 2 MiB share blocks, and their addresses aren't told: they are charged the most
 * blocks that can hold them (small.h).
 *
 * Sparse arrays and those with deferred mapping have no memory of their own: it is VMM memory, mapped into them. */
#include "body.h"
#include "capture.h"
#include "linear.h"
#include "measure.h"
#include "share.h"
#include "small.h"
#include "vmm.h"

#define GOB_WIDTH_BYTES 64 /* the smallest tile: 64 bytes of 8 rows */
#define GOB_ROWS        8
#define MOST_GOBS       16 /* of a block, one above or behind the other */
#define MOST_LEVELS     17
#define SHELF_UNKNOWN   (VGPU_SHELVES - 1)

/* Bytes of one texel, or of a block of 4 by 4 for compressed formats; 0 for a format that isn't known here. */
static uint64_t element_bytes(CUarray_format format, uint64_t channels, uint64_t *texels) {
    static const uint8_t normalised[] = {1, 2, 4, 2, 4, 8};
    unsigned code = (unsigned)format;
    *texels = 1;
    switch (code) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return channels * 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return channels * 4;
    default:
        break;
    }
    if (code >= CU_AD_FORMAT_BC1_UNORM && code <= CU_AD_FORMAT_BC7_UNORM_SRGB) {
        *texels = 4;
        return code <= 0x92 || code == 0x97 || code == 0x98 ? 8 : 16; /* BC1 and BC4 take half */
    }
    if (code >= CU_AD_FORMAT_UNORM_INT8X1 && code <= CU_AD_FORMAT_SNORM_INT16X4)
        return normalised[(code - CU_AD_FORMAT_UNORM_INT8X1) % 6];
    return 0;
}

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static uint64_t up(uint64_t value, uint64_t grain) {
    return value > UINT64_MAX - grain ? UINT64_MAX - grain : (value + grain - 1) / grain * grain;
}

/* How many tiles a block is high or deep: as many as the array needs, a power of two. */
static uint64_t block_gobs(uint64_t wanted, uint64_t most) {
    uint64_t gobs = 1;
    while (gobs < wanted && gobs < most)
        gobs *= 2;
    return gobs;
}

/* Layers and faces lie apart, slices of a solid in blocks. */
static bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR *array) {
    return (array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
}

/* 0 for a format that isn't known. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level) {
    uint64_t texels, element = element_bytes(array->Format, array->NumChannels, &texels);
    bool layers = has_layers(array);
    uint64_t width = array->Width >> level, height = array->Height >> level;
    uint64_t slices = layers ? array->Depth : array->Depth >> level;
    width = ((width ? width : 1) + texels - 1) / texels;
    height = ((height ? height : 1) + texels - 1) / texels;
    slices = slices ? slices : 1;
    uint64_t deep = layers ? 1 : block_gobs(slices, MOST_GOBS);
    uint64_t high = block_gobs((height + GOB_ROWS - 1) / GOB_ROWS, MOST_GOBS / deep);
    uint64_t row_bytes = up(product(width, element), GOB_WIDTH_BYTES);
    return product(product(row_bytes, up(height, high * GOB_ROWS)), up(slices, deep));
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
    uint64_t longest = array->Width > array->Height ? array->Width : array->Height, sum = 0;
    if (!has_layers(array) && array->Depth > longest) longest = array->Depth;
    for (unsigned level = 0; level < levels && level < MOST_LEVELS && (longest >> level || level == 0); level++) {
        uint64_t bytes = level_bytes(array, level);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

/* The driver's own word for an array like this, 0 if it has none. */
static uint64_t told_bytes(const struct vgpu_process *process, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels,
                           int device, uint64_t *grain_bytes) {
    VGPU_CAPTURE_RELAXED;
    CUDA_ARRAY3D_DESCRIPTOR like = *array;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUarray plain;
    CUmipmappedArray mipmapped;
    int ordinal = vgpu_device_ordinal(process, device);
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels == 0 && real_cuArray3DCreate_v2(&plain, &like) == CUDA_SUCCESS) {
        if (real_cuArrayGetMemoryRequirements(&needs, plain, ordinal) != CUDA_SUCCESS) needs.size = 0;
        real_cuArrayDestroy(plain);
    } else if (levels && real_cuMipmappedArrayCreate(&mipmapped, &like, levels) == CUDA_SUCCESS) {
        if (real_cuMipmappedArrayGetMemoryRequirements(&needs, mipmapped, ordinal) != CUDA_SUCCESS) needs.size = 0;
        real_cuMipmappedArrayDestroy(mipmapped);
    }
    *grain_bytes = needs.alignment;
    return needs.size;
}

/* What an array takes, and which others it shares blocks with. `levels` is 0 for what isn't mipmapped. 0 bytes: neither
 * the driver nor anybody here knows. */
struct extent {
    uint64_t bytes;
    int shelf;
};

static struct extent extent_of(const struct vgpu_process *process, const CUDA_ARRAY3D_DESCRIPTOR *array,
                               unsigned levels, int device) {
    uint64_t texels, grain, element = element_bytes(array->Format, array->NumChannels, &texels);
    uint64_t computed = array_bytes(array, levels ? levels : 1),
             told = told_bytes(process, array, levels, device, &grain);
    bool same = computed && grain && up(computed, grain) == told;
    bool known = element && element < UINT64_C(1) << SHELF_UNKNOWN;
    return (struct extent){.bytes = told && !same ? told : computed,
                           .shelf = known ? 63 - __builtin_clzll(element) : SHELF_UNKNOWN};
}

static CUresult reserve(struct vgpu_process *process, int device, struct extent extent) {
    if (extent.bytes <= VGPU_SMALL_BYTES) return vgpu_small_array_reserve(process, device, extent.shelf, extent.bytes);
    return vgpu_charge(process, device, VGPU_KIND_BUFFER, vgpu_whole_blocks(extent.bytes));
}

static void unreserve(struct vgpu_process *process, int device, struct extent extent) {
    if (extent.bytes <= VGPU_SMALL_BYTES)
        vgpu_small_array_freed(process, device, extent.shelf, extent.bytes);
    else
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, vgpu_whole_blocks(extent.bytes));
}

void vgpu_array_freed(struct vgpu_process *process, const struct vgpu_entry *entry) {
    unreserve(process, entry->device, (struct extent){entry->bytes, (int)entry->data});
}

/* `how` carries the parameters of one of the creating functions. */
struct creation {
    CUresult (*create)(const struct creation *creation, void **handle);
    void (*destroy)(void *handle);
    const void *descriptor;
    unsigned levels; /* 0: not mipmapped */
};

/* The reservation, the driver's answer and the entry. In the order in which small ones are reserved the driver places
 * them. */
static CUresult create_known(struct vgpu_process *process, const struct creation *creation,
                             const struct vgpu_place *place, struct extent extent, void **handle) {
    bool small = extent.bytes <= VGPU_SMALL_BYTES;
    if (small) vgpu_private_lock(&process->small_lock);
    CUresult result = reserve(process, place->device, extent);
    if (result == CUDA_SUCCESS && (result = creation->create(creation, handle)) != CUDA_SUCCESS)
        unreserve(process, place->device, extent);
    if (small) vgpu_private_unlock(&process->small_lock);
    if (small && result == CUDA_SUCCESS) vgpu_small_true_up(process, place->device);
    return result;
}

/* What nobody knows beforehand is measured; where that shows nothing, the array lies in a block that was there. */
static CUresult create_unknown(struct vgpu_process *process, const struct creation *creation,
                               const struct vgpu_place *place, struct extent *extent, void **handle) {
    struct vgpu_measure before;
    vgpu_measure_start(process, place->device, &before);
    CUresult result = creation->create(creation, handle);
    if (result != CUDA_SUCCESS) return result;
    int64_t change = vgpu_measure_change(process, &before, 0);
    extent->bytes = change > 0 ? (uint64_t)change : VGPU_SMALL_BYTES;
    result = reserve(process, place->device, *extent);
    if (result != CUDA_SUCCESS) creation->destroy(*handle);
    return result;
}

static CUresult enter(struct vgpu_process *process, const struct creation *creation, const struct vgpu_place *place,
                      struct extent extent, void *made) {
    struct vgpu_entry entry = {.key = (uint64_t)(uintptr_t)made,
                               .bytes = extent.bytes,
                               .data = (uint64_t)extent.shelf,
                               .device = (uint8_t)place->device,
                               .kind = VGPU_KIND_BUFFER,
                               .context = place->context};
    struct vgpu_entry old;
    int known = vgpu_table_exchange(&process->tables[VGPU_ARRAYS], &entry, &old);
    if (known == 1) vgpu_array_freed(process, &old);
    if (known >= 0) return CUDA_SUCCESS;
    creation->destroy(made);
    unreserve(process, place->device, extent);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What is measured is no request in flight, which another thread that measures would wait for. */
static CUresult create_array(struct vgpu_process *process, const struct creation *creation,
                             const CUDA_ARRAY3D_DESCRIPTOR *array, void **handle) {
    struct vgpu_place place;
    void *made = NULL;
    CUresult result;
    if (!vgpu_place_current(process, &place) || (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
        return creation->create(creation, handle);
    struct extent extent = extent_of(process, array, creation->levels, place.device);
    if (extent.bytes == UINT64_MAX) return creation->create(creation, handle); /* no driver has room for that */
    if (extent.bytes) {
        VGPU_GATED(process);
        result = create_known(process, creation, &place, extent, &made);
        if (result == CUDA_SUCCESS) result = enter(process, creation, &place, extent, made);
    } else {
        vgpu_private_lock(&process->birth_lock);
        result = create_unknown(process, creation, &place, &extent, &made);
        if (result == CUDA_SUCCESS) result = enter(process, creation, &place, extent, made);
        vgpu_private_unlock(&process->birth_lock);
    }
    if (result == CUDA_SUCCESS) *handle = made;
    return result;
}

static void destroy_plain(void *handle) {
    real_cuArrayDestroy(handle);
}

static void destroy_mipmapped(void *handle) {
    real_cuMipmappedArrayDestroy(handle);
}

static CUresult plain_v1(const struct creation *creation, void **handle) {
    return real_cuArrayCreate((CUarray *)handle, creation->descriptor);
}

static CUresult plain_v2(const struct creation *creation, void **handle) {
    return real_cuArrayCreate_v2((CUarray *)handle, creation->descriptor);
}

static CUresult solid_v1(const struct creation *creation, void **handle) {
    return real_cuArray3DCreate((CUarray *)handle, creation->descriptor);
}

static CUresult solid_v2(const struct creation *creation, void **handle) {
    return real_cuArray3DCreate_v2((CUarray *)handle, creation->descriptor);
}

static CUresult mipmapped(const struct creation *creation, void **handle) {
    return real_cuMipmappedArrayCreate((CUmipmappedArray *)handle, creation->descriptor, creation->levels);
}

/* Old and flat descriptors name the same things in fewer or narrower fields. The driver gets the copy that was looked
 * at. */
#define FLAT(descriptor)                                                                                               \
    {.Width = (descriptor).Width,                                                                                      \
     .Height = (descriptor).Height,                                                                                    \
     .Format = (descriptor).Format,                                                                                    \
     .NumChannels = (descriptor).NumChannels}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
    VGPU_BEGIN_UNGATED(process, real_cuArrayCreate(pHandle, pAllocateArray));
    if (!pHandle || !pAllocateArray) return real_cuArrayCreate(pHandle, pAllocateArray);
    CUDA_ARRAY_DESCRIPTOR_v1 asked = *pAllocateArray;
    CUDA_ARRAY3D_DESCRIPTOR array = FLAT(asked);
    struct creation creation = {plain_v1, destroy_plain, &asked, 0};
    return create_array(process, &creation, &array, (void **)pHandle);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
    VGPU_BEGIN_UNGATED(process, real_cuArrayCreate_v2(pHandle, pAllocateArray));
    if (!pHandle || !pAllocateArray) return real_cuArrayCreate_v2(pHandle, pAllocateArray);
    CUDA_ARRAY_DESCRIPTOR asked = *pAllocateArray;
    CUDA_ARRAY3D_DESCRIPTOR array = FLAT(asked);
    struct creation creation = {plain_v2, destroy_plain, &asked, 0};
    return create_array(process, &creation, &array, (void **)pHandle);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
    VGPU_BEGIN_UNGATED(process, real_cuArray3DCreate(pHandle, pAllocateArray));
    if (!pHandle || !pAllocateArray) return real_cuArray3DCreate(pHandle, pAllocateArray);
    CUDA_ARRAY3D_DESCRIPTOR_v1 asked = *pAllocateArray;
    CUDA_ARRAY3D_DESCRIPTOR array = FLAT(asked);
    array.Depth = asked.Depth;
    array.Flags = asked.Flags;
    struct creation creation = {solid_v1, destroy_plain, &asked, 0};
    return create_array(process, &creation, &array, (void **)pHandle);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
    VGPU_BEGIN_UNGATED(process, real_cuArray3DCreate_v2(pHandle, pAllocateArray));
    if (!pHandle || !pAllocateArray) return real_cuArray3DCreate_v2(pHandle, pAllocateArray);
    CUDA_ARRAY3D_DESCRIPTOR array = *pAllocateArray;
    struct creation creation = {solid_v2, destroy_plain, &array, 0};
    return create_array(process, &creation, &array, (void **)pHandle);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
    VGPU_BEGIN_UNGATED(process, real_cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels));
    if (!pHandle || !pMipmappedArrayDesc)
        return real_cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    CUDA_ARRAY3D_DESCRIPTOR array = *pMipmappedArrayDesc;
    struct creation creation = {mipmapped, destroy_mipmapped, &array, numMipmapLevels};
    return create_array(process, &creation, &array, (void **)pHandle);
}

static CUresult destroy(struct vgpu_process *process, void *handle, CUresult (*real)(void *handle)) {
    struct vgpu_entry entry;
    bool known = vgpu_table_take(&process->tables[VGPU_ARRAYS], (uint64_t)(uintptr_t)handle, &entry);
    CUresult result = real(handle);
    if (result != CUDA_SUCCESS) {
        if (known) vgpu_table_put(&process->tables[VGPU_ARRAYS], &entry);
        return result;
    }
    if (known) {
        vgpu_array_freed(process, &entry);
        if (entry.bytes <= VGPU_SMALL_BYTES) vgpu_small_true_up(process, entry.device);
    }
    vgpu_vmm_forget_array(process, (uint64_t)(uintptr_t)handle);
    return result;
}

static CUresult real_destroy_plain(void *handle) {
    return real_cuArrayDestroy(handle);
}

static CUresult real_destroy_mipmapped(void *handle) {
    return real_cuMipmappedArrayDestroy(handle);
}

CUresult cuArrayDestroy(CUarray hArray) {
    VGPU_BEGIN_RELEASE(process, real_cuArrayDestroy(hArray));
    return destroy(process, hArray, real_destroy_plain);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    VGPU_BEGIN_RELEASE(process, real_cuMipmappedArrayDestroy(hMipmappedArray));
    return destroy(process, hMipmappedArray, real_destroy_mipmapped);
}
