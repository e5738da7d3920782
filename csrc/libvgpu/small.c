#include "small.h"

#include "charge.h"
#include "hooks.h"
#include "linear.h"
#include "measure.h"
#include "share.h"

#define UNIT_BYTES   UINT64_C(512)
#define UNITS        (VGPU_BLOCK_BYTES / UNIT_BYTES) /* of a block */
#define ONE_REQUEST  (UINT64_C(1) << 40)
#define LINEAR_UNITS (ONE_REQUEST - 1)

static uint64_t block_of(uint64_t pointer) {
    return pointer & ~(VGPU_BLOCK_BYTES - 1);
}

static uint64_t units_of(uint64_t bytes) {
    return (bytes + UNIT_BYTES - 1) / UNIT_BYTES;
}

/* ---- the most blocks that `requests` of `units` together can hold ---- */

/* A request surely finds a hole where the block that was added last has its rest still (if that block isn't there, the
 * bound is one too high and covers the next one), or where the free space is more than all holes together could have if
 * each were too small: there is at most one hole behind each request and one at the beginning of each block. */
static bool surely_fits(const struct vgpu_packing *packing, uint64_t requests, uint64_t units, uint64_t wanted) {
    if (packing->blocks == 0) return false;
    if (packing->placed_units + wanted <= UNITS) return true;
    return packing->blocks * UNITS >= units && packing->blocks * UNITS - units >= (requests + packing->blocks) * wanted;
}

static void place(struct vgpu_packing *packing, uint64_t requests, uint64_t units, uint64_t wanted) {
    if (surely_fits(packing, requests, units, wanted)) {
        packing->placed_units += wanted;
    } else {
        packing->blocks++;
        packing->placed_units = wanted;
    }
}

static void bound(struct vgpu_packing *packing, uint64_t most) {
    if (packing->blocks <= most) return;
    packing->blocks = most;
    packing->placed_units = UNITS;
}

/* With packing_lock: the blocks that arrays may hold beside those of linear requests, whichever way the driver does it.
 */
static uint64_t array_blocks(struct vgpu_small *small) {
    uint64_t apart = 0;
    for (int i = 0; i < VGPU_SHELVES; i++) {
        bound(&small->shelves[i].packing, small->shelves[i].arrays);
        apart += small->shelves[i].packing.blocks;
    }
    if (small->loose_blocks > small->arrays - apart) small->loose_blocks = small->arrays - apart;
    apart += small->loose_blocks;
    bound(&small->together, small->linear_blocks + small->arrays);
    uint64_t rest = small->together.blocks > small->linear_blocks ? small->together.blocks - small->linear_blocks : 0;
    if (small->arrays == 0) rest = 0;
    return rest > apart ? rest : apart;
}

/* The fewest blocks that can hold the arrays of a shelf. */
static uint64_t least_shelf_blocks(const struct vgpu_shelf *shelf) {
    return (shelf->units + UNITS - 1) / UNITS;
}

CUresult vgpu_small_array_reserve(struct vgpu_process *process, int device, int shelf_number, uint64_t bytes) {
    struct vgpu_small *small = &process->small[device];
    struct vgpu_shelf *shelf = &small->shelves[shelf_number];
    uint64_t units = units_of(bytes), linear = __atomic_load_n(&small->linear, __ATOMIC_RELAXED);
    vgpu_private_lock(&process->packing_lock);
    struct vgpu_small old = *small;
    if (small->arrays == 0) small->together = (struct vgpu_packing){small->linear_blocks, UNITS};
    place(&shelf->packing, shelf->arrays, shelf->units, units);
    place(&small->together, small->arrays + linear / ONE_REQUEST, small->array_units + (linear & LINEAR_UNITS), units);
    __atomic_store_n(&small->arrays, small->arrays + 1, __ATOMIC_RELAXED);
    small->array_units += units;
    shelf->arrays++;
    shelf->units += units;
    uint64_t blocks = array_blocks(small);
    CUresult result = CUDA_SUCCESS;
    if (blocks > small->array_blocks)
        result = vgpu_charge(process, device, VGPU_KIND_BUFFER, (blocks - small->array_blocks) * VGPU_BLOCK_BYTES);
    if (result == CUDA_SUCCESS) {
        small->in_doubt |= blocks > small->array_blocks;
        small->array_blocks = blocks;
    } else {
        __atomic_store_n(&small->arrays, old.arrays, __ATOMIC_RELAXED);
        small->array_units = old.array_units;
        *shelf = old.shelves[shelf_number];
        small->loose_blocks = old.loose_blocks;
        small->together = old.together;
    }
    vgpu_private_unlock(&process->packing_lock);
    return result;
}

/* With packing_lock. */
static void give_back(struct vgpu_process *process, int device, uint64_t blocks) {
    struct vgpu_small *small = &process->small[device];
    if (blocks < small->array_blocks)
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, (small->array_blocks - blocks) * VGPU_BLOCK_BYTES);
    small->array_blocks = blocks;
}

/* The fewest blocks beside those of linear requests that can hold the arrays. */
static uint64_t least_array_blocks(const struct vgpu_small *small) {
    uint64_t units = small->array_units + (__atomic_load_n(&small->linear, __ATOMIC_RELAXED) & LINEAR_UNITS);
    uint64_t least = (units + UNITS - 1) / UNITS;
    return least > small->linear_blocks ? least - small->linear_blocks : 0;
}

/* Nobody else has a request in flight: what is charged too much is charged for arrays, as all else is charged as it is.
 * Whichever way the driver does it, so many blocks hold them now, and how full those are isn't known. */
void vgpu_small_true_up(struct vgpu_process *process, int device) {
    struct vgpu_small *small = &process->small[device];
    if (!__atomic_load_n(&small->in_doubt, __ATOMIC_RELAXED) || small->array_blocks <= least_array_blocks(small))
        return;
    if (!vgpu_measure_can_tell(process) || !vgpu_private_trylock(&process->birth_lock)) return;
    if (vgpu_gate_try_close(&process->gate)) {
        uint64_t surplus = vgpu_measure_surplus(process, device) / VGPU_BLOCK_BYTES;
        vgpu_private_lock(&process->packing_lock);
        uint64_t least = least_array_blocks(small), most = small->array_blocks;
        small->in_doubt = false;
        if (surplus > 0 && most > least) {
            uint64_t blocks = most - least > surplus ? most - surplus : least;
            uint64_t apart = 0;
            for (int i = 0; i < VGPU_SHELVES; i++) {
                small->shelves[i].packing = (struct vgpu_packing){least_shelf_blocks(&small->shelves[i]), UNITS};
                apart += small->shelves[i].packing.blocks;
            }
            small->loose_blocks = blocks > apart ? blocks - apart : 0;
            small->together = (struct vgpu_packing){small->linear_blocks + blocks, UNITS};
            give_back(process, device, blocks);
        }
        vgpu_private_unlock(&process->packing_lock);
        vgpu_gate_open(&process->gate);
    }
    vgpu_private_unlock(&process->birth_lock);
}

void vgpu_small_array_freed(struct vgpu_process *process, int device, int shelf_number, uint64_t bytes) {
    struct vgpu_small *small = &process->small[device];
    vgpu_private_lock(&process->packing_lock);
    __atomic_store_n(&small->arrays, small->arrays - 1, __ATOMIC_RELAXED);
    small->array_units -= units_of(bytes);
    small->shelves[shelf_number].arrays--;
    small->shelves[shelf_number].units -= units_of(bytes);
    small->in_doubt = true;
    give_back(process, device, array_blocks(small));
    vgpu_private_unlock(&process->packing_lock);
}

/* ---- linear requests ---- */

/* With small_lock, so `small->arrays` doesn't become more. The request is in a block that had none before, which may
 * have been one of arrays; or it fills a hole. */
static void note_place(struct vgpu_process *process, int device, uint64_t units, bool first) {
    struct vgpu_small *small = &process->small[device];
    uint64_t linear = __atomic_load_n(&small->linear, __ATOMIC_RELAXED);
    if (!first && __atomic_load_n(&small->arrays, __ATOMIC_RELAXED) == 0) return;
    vgpu_private_lock(&process->packing_lock);
    if (small->arrays) {
        if (first)
            place(&small->together, small->arrays + linear / ONE_REQUEST, small->array_units + (linear & LINEAR_UNITS),
                  units);
        else
            small->together.placed_units += units;
    }
    if (first) small->linear_blocks++;
    small->in_doubt |= first && small->arrays;
    if (small->arrays) give_back(process, device, array_blocks(small));
    vgpu_private_unlock(&process->packing_lock);
}

/* A block has lost its last linear request: it is given back unless arrays may be in it still. */
static void block_lost(struct vgpu_process *process, int device) {
    struct vgpu_small *small = &process->small[device];
    vgpu_private_lock(&process->packing_lock);
    small->linear_blocks--;
    small->in_doubt |= small->arrays != 0;
    small->array_blocks++; /* its charge is the arrays' now */
    give_back(process, device, array_blocks(small));
    vgpu_private_unlock(&process->packing_lock);
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
    struct vgpu_entry old;
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
    note_place(process, place->device, units_of(bytes), references == 1);
    __atomic_add_fetch(&process->small[place->device].linear, ONE_REQUEST + units_of(bytes), __ATOMIC_RELAXED);
    int known = vgpu_table_exchange(&process->tables[VGPU_POINTERS], &request, &old);
    if (known == 1) vgpu_linear_freed(process, &old);
    if (known < 0) vgpu_small_freed(process, &request);
    return known < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Only a guess at whether a new block is needed; what the driver did is looked at afterwards. */
static bool needs_block(const struct vgpu_small *small, uint64_t bytes) {
    uint64_t units = __atomic_load_n(&small->linear, __ATOMIC_RELAXED) & LINEAR_UNITS;
    uint64_t room = __atomic_load_n(&small->linear_blocks, __ATOMIC_RELAXED) * UNITS;
    return units + units_of(bytes) > room;
}

CUresult vgpu_small_allocate(struct vgpu_process *process, const struct vgpu_place *place, uint64_t bytes,
                             CUresult (*allocate)(const void *data, CUdeviceptr *pointer), const void *data,
                             CUdeviceptr *out) {
    CUdeviceptr pointer = 0;
    CUresult result = CUDA_SUCCESS;
    vgpu_private_lock(&process->small_lock);
    bool charged = needs_block(&process->small[place->device], bytes);
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
    vgpu_small_true_up(process, place->device);
    return result;
}

void vgpu_small_freed(struct vgpu_process *process, const struct vgpu_entry *entry) {
    struct vgpu_entry last, exported;
    /* Who imported it keeps the whole block, and is charged before we aren't. */
    if (vgpu_table_take(&process->tables[VGPU_EXPORTS], entry->key, &exported))
        vgpu_share_close(process, exported.data);
    int64_t references = vgpu_table_refer(&process->tables[VGPU_BLOCKS], block_of(entry->key), -1, NULL, &last);
    if (references < 0) return;
    __atomic_sub_fetch(&process->small[entry->device].linear, ONE_REQUEST + units_of(entry->data), __ATOMIC_RELAXED);
    if (references == 0) block_lost(process, entry->device);
}
