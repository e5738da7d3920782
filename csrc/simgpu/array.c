/* Arrays: plain, layered, mipmapped, sparse.
 *
 * The card tiles them: 64 bytes of eight rows are a GOB, up to 16 GOBs one above or behind the other are a block, and
 * an array is made of whole blocks. How many bytes that comes to was measured on an H200. */
#include "array.h"

#include <stdlib.h>
#include <string.h>

#define ARRAY_MAGIC  0x41727279u
#define MIPMAP_MAGIC 0x4d69706du
#define LEVELS       17
#define TILE         65536u /* what memory is mapped into a sparse or deferred array by */

struct CUarray_st {
    uint32_t magic;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct memory *memory; /* NULL: sparse, deferred, or a level of a mipmapped one */
    CUdeviceptr base;
    uint64_t pitch, slice;
    CUmipmappedArray parent;
    struct CUarray_st *next;
};

struct CUmipmappedArray_st {
    uint32_t magic;
    CUcontext context;
    struct memory *memory;
    unsigned levels;
    uint64_t bytes;
    CUarray level[LEVELS];
    struct CUmipmappedArray_st *next;
};

static CUarray arrays;
static CUmipmappedArray mipmaps;

/* Bytes of one texel; of a 4 by 4 block for compressed formats. 0 for what is no format. */
static unsigned element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned *texels) {
    *texels = 1;
    unsigned channels = descriptor->NumChannels, format = (unsigned)descriptor->Format;
    bool channels_exist = channels == 1 || channels == 2 || channels == 4;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels_exist ? channels : 0;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return channels_exist ? channels * 2 : 0;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return channels_exist ? channels * 4 : 0;
    }
    if (format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB) {
        *texels = 4;
        bool half = format <= 0x92 || format == 0x97 || format == 0x98; /* BC1 and BC4 */
        return half ? 8 : 16;
    }
    if (format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= CU_AD_FORMAT_SNORM_INT16X4) {
        static const unsigned bytes[] = {1, 2, 4, 2, 4, 8};
        return bytes[(format - CU_AD_FORMAT_UNORM_INT8X1) % 6];
    }
    return 0;
}

#define GOB_WIDTH  UINT64_C(64)
#define GOB_HEIGHT 8u
#define BLOCK_GOBS 16u

/* The smallest power of two that is at least `wanted`, at most `most`. */
static unsigned power_of_two(uint64_t wanted, unsigned most) {
    unsigned power = 1;
    while (power < most && power < wanted)
        power *= 2;
    return power;
}

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* An array's rows, how far apart its slices are and what it takes; false for what can't be one. */
static bool layout(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, uint64_t *pitch, uint64_t *slice, uint64_t *bytes) {
    unsigned texels, element = element_bytes(descriptor, &texels);
    if (element == 0 || descriptor->Width == 0 || descriptor->Width > 1u << 28 || descriptor->Height > 1u << 20 ||
        descriptor->Depth > 1u << 16)
        return false;
    uint64_t rows = descriptor->Height ? (descriptor->Height + texels - 1) / texels : 1;
    uint64_t slices = descriptor->Depth ? descriptor->Depth : 1;
    bool layers = descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    unsigned deep = layers ? 1 : power_of_two(slices, BLOCK_GOBS); /* GOBs of a block, one behind the other */
    unsigned high = power_of_two((rows + GOB_HEIGHT - 1) / GOB_HEIGHT, BLOCK_GOBS / deep);
    *pitch = round_up((descriptor->Width + texels - 1) / texels * element, GOB_WIDTH);
    *slice = *pitch * round_up(rows, high * GOB_HEIGHT);
    *bytes = *slice * round_up(slices, deep);
    return true;
}

static bool unbacked(unsigned flags) {
    return flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* Takes an array's memory of the card. */
static CUresult take_locked(struct memory **result, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, uint64_t bytes) {
    struct memory *memory = memory_new(MEMORY_ARRAY, current_context->device, current_context);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned texels;
    memory->size = bytes;
    memory->extra = driver.device[memory->device].array_heap + __builtin_ctz(element_bytes(descriptor, &texels));
    CUresult taken = memory_take(memory, NULL, false);
    if (taken == CUDA_SUCCESS)
        *result = memory;
    else
        memory_recycle(memory);
    return taken;
}

static CUresult create(CUarray *result, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    uint64_t pitch, slice, bytes;
    if (!result || !layout(descriptor, &pitch, &slice, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    CUarray array = calloc(1, sizeof *array);
    if (!array) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    CUresult status = unbacked(descriptor->Flags) ? CUDA_SUCCESS : take_locked(&array->memory, descriptor, bytes);
    if (status == CUDA_SUCCESS) {
        array->magic = ARRAY_MAGIC;
        array->context = current_context;
        array->descriptor = *descriptor;
        array->pitch = pitch;
        array->slice = slice;
        if (array->memory) {
            array->base = array->memory->base;
            memory_touch(array->memory);
        }
        array->next = arrays;
        arrays = array;
        *result = array;
    }
    driver_unlock();
    if (status != CUDA_SUCCESS) free(array);
    return status;
}

CUAPI(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)) {
    ENTER_UNSAFE();
    return descriptor ? create(array, descriptor) : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *flat)) {
    ENTER_UNSAFE();
    if (!flat) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = flat->Width,
                                                    .Height = flat->Height,
                                                    .Format = flat->Format,
                                                    .NumChannels = flat->NumChannels});
}

CUAPI(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *flat)) {
    ENTER_UNSAFE();
    if (!flat) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = flat->Width,
                                                    .Height = flat->Height,
                                                    .Format = flat->Format,
                                                    .NumChannels = flat->NumChannels});
}

CUAPI(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)) {
    ENTER_UNSAFE();
    if (!old) return CUDA_ERROR_INVALID_VALUE;
    return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = old->Width,
                                                    .Height = old->Height,
                                                    .Depth = old->Depth,
                                                    .Format = old->Format,
                                                    .NumChannels = old->NumChannels,
                                                    .Flags = old->Flags});
}

static bool valid_locked(CUarray wanted) {
    for (CUarray array = arrays; array; array = array->next)
        if (array == wanted) return true;
    return false;
}

static void destroy_locked(CUarray array) {
    CUarray *link = &arrays;
    while (*link != array)
        link = &(*link)->next;
    *link = array->next;
    if (array->memory) memory_give(array->memory);
    if (unbacked(array->descriptor.Flags)) tiles_forget_locked(array);
    array->magic = 0;
    free(array);
}

/* Begins a function about one array: the lock is held where this succeeds. */
static CUresult array_enter(CUarray array) {
    driver_lock();
    if (valid_locked(array)) return CUDA_SUCCESS;
    driver_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuArrayDestroy, (CUarray array)) {
    ENTER_CONTEXT();
    TRY(array_enter(array));
    CUresult result = array->parent ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) destroy_locked(array);
    driver_unlock();
    return result;
}

bool array_data(CUarray array, CUdeviceptr *base, uint64_t *pitch, uint64_t *slice) {
    if (array_enter(array) != CUDA_SUCCESS) return false;
    *base = array->base;
    *pitch = array->pitch;
    *slice = array->base ? array->slice : 0;
    driver_unlock();
    return true;
}

CUAPI(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * descriptor, CUarray array)) {
    ENTER_CONTEXT();
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    TRY(array_enter(array));
    *descriptor = array->descriptor;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR * flat, CUarray array)) {
    ENTER_CONTEXT();
    if (!flat) return CUDA_ERROR_INVALID_VALUE;
    TRY(array_enter(array));
    const CUDA_ARRAY3D_DESCRIPTOR *whole = &array->descriptor;
    *flat = (CUDA_ARRAY_DESCRIPTOR){
        .Width = whole->Width, .Height = whole->Height, .Format = whole->Format, .NumChannels = whole->NumChannels};
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuArrayGetPlane, (CUarray * plane, CUarray array, unsigned index)) {
    (void)index;
    ENTER_CONTEXT();
    if (!plane) return CUDA_ERROR_INVALID_VALUE;
    TRY(array_enter(array));
    driver_unlock();
    return CUDA_ERROR_INVALID_VALUE; /* no planar formats here */
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *result, unsigned flags, uint64_t bytes) {
    if (!result || !unbacked(flags)) return CUDA_ERROR_INVALID_VALUE;
    *result = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = round_up(bytes, TILE), .alignment = TILE};
    return CUDA_SUCCESS;
}

CUAPI(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * result, CUarray array, CUdevice device)) {
    ENTER_CONTEXT();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    TRY(array_enter(array));
    uint64_t pitch, slice, bytes = 0;
    layout(&array->descriptor, &pitch, &slice, &bytes);
    CUresult status = requirements(result, array->descriptor.Flags, bytes);
    driver_unlock();
    return status;
}

static CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES *result, unsigned flags, unsigned element) {
    if (!result || !(flags & CUDA_ARRAY3D_SPARSE)) return CUDA_ERROR_INVALID_VALUE;
    *result = (CUDA_ARRAY_SPARSE_PROPERTIES){0}; /* tiles of 64 KiB */
    result->tileExtent.width = 256 / (element ? element : 1);
    result->tileExtent.height = 256;
    result->tileExtent.depth = 1;
    return CUDA_SUCCESS;
}

CUAPI(cuArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES * result, CUarray array)) {
    ENTER_CONTEXT();
    TRY(array_enter(array));
    unsigned texels;
    CUresult status = sparse(result, array->descriptor.Flags, element_bytes(&array->descriptor, &texels));
    driver_unlock();
    return status;
}

/* ---- mipmapped arrays ---- */

static unsigned possible_levels(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    size_t longest = descriptor->Width > descriptor->Height ? descriptor->Width : descriptor->Height;
    if (!(descriptor->Flags & CUDA_ARRAY3D_LAYERED) && descriptor->Depth > longest) longest = descriptor->Depth;
    unsigned levels = 1;
    while (longest >>= 1)
        levels++;
    return levels < LEVELS ? levels : LEVELS;
}

static size_t halved(size_t extent, unsigned level) {
    return extent == 0 ? 0 : extent >> level ? extent >> level : 1;
}

static void free_mipmap_locked(CUmipmappedArray mipmap) {
    for (unsigned level = 0; level < mipmap->levels; level++)
        if (mipmap->level[level]) destroy_locked(mipmap->level[level]);
    if (mipmap->memory) memory_give(mipmap->memory);
    tiles_forget_locked(mipmap);
    mipmap->magic = 0;
    free(mipmap);
}

static CUresult fill_mipmap_locked(CUmipmappedArray mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    for (unsigned level = 0; level < mipmap->levels; level++) {
        CUarray array = calloc(1, sizeof *array);
        if (!array) return CUDA_ERROR_OUT_OF_MEMORY;
        uint64_t bytes = 0;
        array->magic = ARRAY_MAGIC;
        array->context = current_context;
        array->descriptor = *descriptor;
        array->descriptor.Width = halved(descriptor->Width, level);
        array->descriptor.Height = halved(descriptor->Height, level);
        if (!(descriptor->Flags & CUDA_ARRAY3D_LAYERED)) array->descriptor.Depth = halved(descriptor->Depth, level);
        array->parent = mipmap;
        array->next = arrays;
        arrays = array;
        mipmap->level[level] = array;
        layout(&array->descriptor, &array->pitch, &array->slice, &bytes);
        array->base = mipmap->bytes; /* an offset, until the memory is there */
        mipmap->bytes += bytes;
    }
    if (unbacked(descriptor->Flags)) {
        for (unsigned level = 0; level < mipmap->levels; level++)
            mipmap->level[level]->base = 0;
        return CUDA_SUCCESS;
    }
    TRY(take_locked(&mipmap->memory, descriptor, mipmap->bytes));
    memory_touch(mipmap->memory);
    for (unsigned level = 0; level < mipmap->levels; level++)
        mipmap->level[level]->base += mipmap->memory->base;
    return CUDA_SUCCESS;
}

CUAPI(cuMipmappedArrayCreate, (CUmipmappedArray * result, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)) {
    ENTER_UNSAFE();
    uint64_t pitch, slice, bytes;
    if (!result || !descriptor || levels == 0 || !layout(descriptor, &pitch, &slice, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray mipmap = calloc(1, sizeof *mipmap);
    if (!mipmap) return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned most = possible_levels(descriptor);
    mipmap->magic = MIPMAP_MAGIC;
    mipmap->context = current_context;
    mipmap->levels = levels < most ? levels : most;
    driver_lock();
    CUresult status = fill_mipmap_locked(mipmap, descriptor);
    if (status == CUDA_SUCCESS) {
        mipmap->next = mipmaps;
        mipmaps = mipmap;
        *result = mipmap;
    } else {
        free_mipmap_locked(mipmap);
    }
    driver_unlock();
    return status;
}

static CUmipmappedArray *mipmap_link(CUmipmappedArray wanted) {
    CUmipmappedArray *link = &mipmaps;
    while (*link && *link != wanted)
        link = &(*link)->next;
    return link;
}

CUAPI(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap)) {
    ENTER_CONTEXT();
    driver_lock();
    CUmipmappedArray *link = mipmap_link(mipmap);
    bool known = *link != NULL;
    if (known) {
        *link = mipmap->next;
        free_mipmap_locked(mipmap);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuMipmappedArrayGetLevel, (CUarray * array, CUmipmappedArray mipmap, unsigned level)) {
    ENTER_CONTEXT();
    driver_lock();
    bool known = *mipmap_link(mipmap) != NULL;
    CUresult status = !known                            ? CUDA_ERROR_INVALID_HANDLE
                      : array && level < mipmap->levels ? CUDA_SUCCESS
                                                        : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS) *array = mipmap->level[level];
    driver_unlock();
    return status;
}

CUAPI(cuMipmappedArrayGetMemoryRequirements,
      (CUDA_ARRAY_MEMORY_REQUIREMENTS * result, CUmipmappedArray mipmap, CUdevice device)) {
    ENTER_CONTEXT();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    CUresult status = *mipmap_link(mipmap) ? requirements(result, mipmap->level[0]->descriptor.Flags, mipmap->bytes)
                                           : CUDA_ERROR_INVALID_HANDLE;
    driver_unlock();
    return status;
}

CUAPI(cuMipmappedArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES * result, CUmipmappedArray mipmap)) {
    ENTER_CONTEXT();
    driver_lock();
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    if (*mipmap_link(mipmap)) {
        unsigned texels;
        const CUDA_ARRAY3D_DESCRIPTOR *first = &mipmap->level[0]->descriptor;
        status = sparse(result, first->Flags, element_bytes(first, &texels));
    }
    driver_unlock();
    return status;
}

void array_release_context_locked(CUcontext context) {
    for (CUmipmappedArray *link = &mipmaps; *link;) {
        CUmipmappedArray mipmap = *link;
        if (mipmap->context != context) {
            link = &mipmap->next;
            continue;
        }
        *link = mipmap->next;
        free_mipmap_locked(mipmap);
    }
    for (CUarray array = arrays, next; array; array = next) {
        next = array->next;
        if (array->context == context) destroy_locked(array);
    }
}
