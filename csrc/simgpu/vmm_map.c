/* Virtual memory management, address side: reserve, map, unmap, access; tiles of sparse arrays. */
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "copy.h"
#include "stream.h"
#include "vmm.h"

struct mapping {
    CUdeviceptr base;
    uint64_t bytes;
    uint64_t offset;
    struct physical *physical;
    CUmemAccess_flags access[SIM_MAX_CARDS];
};

/* Mappings of one reservation, by address. */
struct mappings {
    unsigned count, room;
    struct mapping *at;
};

/* Index of the first mapping that ends behind the address. */
static unsigned position(const struct mappings *mappings, CUdeviceptr address) {
    unsigned low = 0, high = mappings->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (mappings->at[middle].base + mappings->at[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct memory *reservation_at(CUdeviceptr address, uint64_t bytes) {
    struct memory *memory = memory_find(address);
    if (!memory || memory->kind != MEMORY_RESERVED || address - memory->base + bytes > memory->size) return NULL;
    return memory;
}

static struct mapping *mapping_at(CUdeviceptr address) {
    struct memory *memory = reservation_at(address, 1);
    if (!memory) return NULL;
    const struct mappings *mappings = memory->extra;
    unsigned index = position(mappings, address);
    return index < mappings->count && mappings->at[index].base <= address ? &mappings->at[index] : NULL;
}

CUAPI(cuMemAddressReserve,
      (CUdeviceptr * pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)) {
    ENTER();
    if (!pointer || flags || !granular(bytes) || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t blocks = bytes >> BLOCK_SHIFT, align = alignment > BLOCK ? alignment >> BLOCK_SHIFT : 1;
    if (blocks > UINT32_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    struct memory *memory = memory_new(MEMORY_RESERVED, 0, NULL);
    struct mappings *mappings = calloc(1, sizeof *mappings);
    CUdeviceptr base = 0;
    if (memory && mappings) {
        if (wanted) base = arena_take_at(wanted, blocks);
        if (!base) base = arena_take(blocks, align, false);
    }
    if (base) {
        memory->base = base;
        memory->size = bytes;
        memory->blocks = (uint32_t)blocks;
        memory->extra = mappings;
        arena_set(base, memory);
        *pointer = base;
    } else {
        free(mappings);
        if (memory) memory_recycle(memory);
    }
    driver_unlock();
    return base ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuMemAddressFree, (CUdeviceptr pointer, size_t bytes)) {
    ENTER();
    driver_lock();
    struct memory *memory = reservation_at(pointer, 1);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (memory && memory->base == pointer && memory->size == bytes) {
        struct mappings *mappings = memory->extra;
        if (mappings->count == 0) {
            arena_clear(pointer);
            arena_give(pointer, memory->blocks);
            free(mappings->at);
            free(mappings);
            memory_recycle(memory);
            result = CUDA_SUCCESS;
        }
    }
    driver_unlock();
    return result;
}

static CUresult map_locked(CUdeviceptr pointer, uint64_t bytes, uint64_t offset, struct physical *physical) {
    struct memory *memory = reservation_at(pointer, bytes);
    if (!memory || offset > physical->bytes || bytes > physical->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    struct mappings *mappings = memory->extra;
    unsigned index = position(mappings, pointer);
    if (index < mappings->count && mappings->at[index].base < pointer + bytes) return CUDA_ERROR_INVALID_VALUE;
    if (mappings->count == mappings->room) {
        unsigned room = mappings->room ? mappings->room * 2 : 4;
        struct mapping *larger = realloc(mappings->at, room * sizeof *larger);
        if (!larger) return CUDA_ERROR_OUT_OF_MEMORY;
        mappings->at = larger;
        mappings->room = room;
    }
    memmove(&mappings->at[index + 1], &mappings->at[index], (mappings->count - index) * sizeof *mappings->at);
    mappings->at[index] = (struct mapping){.base = pointer, .bytes = bytes, .offset = offset, .physical = physical};
    mappings->count++;
    physical->maps++;
    physical_show(physical, pointer, offset, bytes);
    return CUDA_SUCCESS;
}

CUAPI(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags)) {
    ENTER();
    if (flags || !granular(bytes) || pointer & (BLOCK - 1) || offset & (BLOCK - 1)) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct physical *physical = physical_find_locked(handle);
    CUresult result = physical ? map_locked(pointer, bytes, offset, physical) : CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    return result;
}

/* The mappings that a range covers entirely and without a gap: first index and number; false else. */
static bool covered(const struct mappings *mappings, CUdeviceptr pointer, uint64_t bytes, unsigned *first,
                    unsigned *count) {
    CUdeviceptr at = pointer, end = pointer + bytes;
    *first = position(mappings, pointer);
    *count = 0;
    while (at < end) {
        unsigned index = *first + *count;
        if (index >= mappings->count || mappings->at[index].base != at) return false;
        at += mappings->at[index].bytes;
        ++*count;
    }
    return at == end;
}

CUAPI(cuMemUnmap, (CUdeviceptr pointer, size_t bytes)) {
    ENTER();
    if (!granular(bytes)) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct memory *memory = reservation_at(pointer, bytes);
    struct mappings *mappings = memory ? memory->extra : NULL;
    unsigned first = 0, count = 0;
    bool known = memory && covered(mappings, pointer, bytes, &first, &count);
    if (known) {
        for (unsigned i = first; i < first + count; i++) {
            struct physical *physical = mappings->at[i].physical;
            physical->maps--;
            physical_settle_locked(physical);
        }
        memmove(&mappings->at[first], &mappings->at[first + count],
                (mappings->count - first - count) * sizeof *mappings->at);
        mappings->count -= count;
        arena_replace(pointer, bytes);
    }
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemSetAccess, (CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)) {
    ENTER();
    if (!access || count == 0 || !granular(bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(access[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    struct memory *memory = reservation_at(pointer, bytes);
    struct mappings *mappings = memory ? memory->extra : NULL;
    unsigned first = 0, mapped = 0;
    bool known = memory && covered(mappings, pointer, bytes, &first, &mapped);
    for (unsigned i = first; known && i < first + mapped; i++)
        for (size_t a = 0; a < count; a++)
            if (access[a].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
                mappings->at[i].access[access[a].location.id] = access[a].flags;
    driver_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)) {
    ENTER();
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    const struct mapping *mapping = mapping_at(pointer);
    if (mapping)
        *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? (unsigned long long)mapping->access[location->id] : 0;
    driver_unlock();
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address)) {
    ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    const struct mapping *mapping = mapping_at((uintptr_t)address);
    if (mapping) {
        mapping->physical->references++;
        *handle = mapping->physical->handle;
    }
    driver_unlock();
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct physical *physical_at_locked(CUdeviceptr address, uint64_t *offset) {
    const struct mapping *mapping = mapping_at(address);
    if (!mapping) return NULL;
    *offset = mapping->offset + (address - mapping->base);
    return mapping->physical;
}

bool mapped_find_locked(CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes, int *device, unsigned *types) {
    const struct mapping *mapping = mapping_at(address);
    if (!mapping) return false;
    *base = mapping->base;
    *bytes = mapping->bytes;
    *device = mapping->physical->device;
    *types = (unsigned)mapping->physical->properties.requestedHandleTypes;
    return true;
}

static bool accessible(const struct mapping *mapping) {
    for (int i = 0; i < driver.devices; i++)
        if (mapping->access[i]) return true;
    return false;
}

uint64_t mapped_bytes_locked(CUdeviceptr address) {
    struct memory *memory = reservation_at(address, 1);
    if (!memory) return 0;
    const struct mappings *mappings = memory->extra;
    CUdeviceptr at = address;
    for (unsigned i = position(mappings, address); i < mappings->count && mappings->at[i].base <= at; i++) {
        if (!accessible(&mappings->at[i])) break;
        at = mappings->at[i].base + mappings->at[i].bytes;
    }
    return at - address;
}

/* ---- tiles of sparse arrays ---- */

struct tile {
    const void *resource;
    CUarrayMapInfo place;
    struct physical *physical;
    struct tile *next;
};

static struct tile *tiles;

static bool same_place(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
    return a->resource.array == b->resource.array && a->subresourceType == b->subresourceType &&
           memcmp(&a->subresource, &b->subresource, sizeof a->subresource) == 0;
}

static void drop_tile_locked(struct tile **link) {
    struct tile *tile = *link;
    *link = tile->next;
    tile->physical->maps--;
    physical_settle_locked(tile->physical);
    free(tile);
}

void tiles_forget_locked(const void *resource) {
    for (struct tile **link = &tiles; *link;)
        if ((*link)->resource == resource)
            drop_tile_locked(link);
        else
            link = &(*link)->next;
}

static CUresult map_tile_locked(const CUarrayMapInfo *info) {
    struct tile **link = &tiles;
    while (*link && !same_place(&(*link)->place, info))
        link = &(*link)->next;
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
        if (*link) drop_tile_locked(link);
        return CUDA_SUCCESS;
    }
    struct physical *physical = physical_find_locked(info->memHandle.memHandle);
    if (!physical) return CUDA_ERROR_INVALID_VALUE;
    if (*link) drop_tile_locked(link);
    struct tile *tile = calloc(1, sizeof *tile);
    if (!tile) return CUDA_ERROR_OUT_OF_MEMORY;
    *tile = (struct tile){.resource = info->resource.array, .place = *info, .physical = physical, .next = tiles};
    physical->maps++;
    tiles = tile;
    return CUDA_SUCCESS;
}

CUAPI(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned count, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!list && count) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    driver_lock();
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = map_tile_locked(&list[i]);
    driver_unlock();
    return result;
}
