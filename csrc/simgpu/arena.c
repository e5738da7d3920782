/* The device address space: a reservation of real addresses, given out in blocks of 2 MiB.
 *
 * Taking and giving is O(1) for the sizes a program uses over and over: freed ranges wait in a list of their own size
 * and the rest comes from the top. Physical memory is counted elsewhere, so fragments cost nothing but addresses. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

#define BINS 513u /* one list for each size up to 512 blocks, the last one for larger ranges */
#define NONE UINT32_MAX

struct arena {
    CUdeviceptr base;
    uint64_t blocks;
    uint64_t top;          /* never given out from here on */
    struct memory **owner; /* by first block */
    uint32_t *next;        /* of a free range */
    uint32_t *length;      /* of a free range */
    uint64_t *starts;      /* bit per block that begins a named range */
    uint32_t bin[BINS];
};

static struct arena high, low_arena;

static void *reserve(uint64_t bytes, void *hint, int flags) {
    void *at = mmap(hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int setup(struct arena *arena, CUdeviceptr base, uint64_t bytes) {
    arena->blocks = bytes >> BLOCK_SHIFT;
    arena->owner = reserve(arena->blocks * sizeof *arena->owner, NULL, 0);
    arena->next = reserve(arena->blocks * sizeof *arena->next, NULL, 0);
    arena->length = reserve(arena->blocks * sizeof *arena->length, NULL, 0);
    arena->starts = reserve(arena->blocks / 8 + 8, NULL, 0);
    if (!arena->owner || !arena->next || !arena->length || !arena->starts) return -ENOMEM;
    memset(arena->bin, 0xff, sizeof arena->bin);
    arena->base = base;
    return 0;
}

int arena_init(void) {
    if (high.base) return 0;
    /* As much as an ulimit allows, down to what one card needs. A real driver reserves addresses like this too. */
    for (uint64_t bytes = UINT64_C(8) << 40; bytes >= UINT64_C(16) << 30; bytes /= 2) {
        void *at = reserve(bytes + BLOCK, NULL, 0);
        if (!at) continue;
        madvise(at, bytes + BLOCK, MADV_DONTDUMP);
        return setup(&high, ((uintptr_t)at + BLOCK - 1) & ~(BLOCK - 1), bytes);
    }
    return -ENOMEM;
}

/* Addresses that fit in 32 bits, for the functions of CUDA 2 and 3. Reserved only when such a function is called. */
static bool low_init(void) {
    if (low_arena.base) return true;
    for (uint64_t bytes = UINT64_C(1) << 30; bytes >= UINT64_C(64) << 20; bytes /= 2)
        for (uintptr_t hint = 0x10000000; hint < 0xf0000000; hint += 0x10000000) {
            void *at = reserve(bytes, (void *)hint, 0);
            bool fits = at && (uintptr_t)at + bytes <= UINT64_C(1) << 32 && ((uintptr_t)at & (BLOCK - 1)) == 0;
            if (fits) return setup(&low_arena, (uintptr_t)at, bytes) == 0;
            if (at) munmap(at, bytes);
        }
    return false;
}

static inline struct arena *arena_of(CUdeviceptr address) {
    if (LIKELY(address - high.base < high.blocks << BLOCK_SHIFT)) return &high;
    if (low_arena.base && address - low_arena.base < low_arena.blocks << BLOCK_SHIFT) return &low_arena;
    return NULL;
}

static uint64_t from_list(struct arena *arena, uint64_t blocks, uint64_t align) {
    uint32_t *link = &arena->bin[blocks < BINS ? blocks : 0];
    for (; *link != NONE; link = &arena->next[*link]) {
        uint64_t index = *link;
        if (arena->length[index] != blocks || (((arena->base >> BLOCK_SHIFT) + index) & (align - 1))) continue;
        *link = arena->next[index];
        return index;
    }
    return NONE;
}

/* The addresses have run out: split any longer range. */
static uint64_t from_longer(struct arena *arena, uint64_t blocks, uint64_t align) {
    for (uint32_t bin = 0; bin < BINS; bin++)
        for (uint32_t *link = &arena->bin[bin]; *link != NONE; link = &arena->next[*link]) {
            uint64_t index = *link, length = arena->length[index];
            if (length <= blocks || (((arena->base >> BLOCK_SHIFT) + index) & (align - 1))) continue;
            *link = arena->next[index];
            arena_give(arena->base + ((index + blocks) << BLOCK_SHIFT), length - blocks);
            return index;
        }
    return NONE;
}

CUdeviceptr arena_take(uint64_t blocks, uint64_t align, bool low) {
    if (low && !low_init()) return 0;
    struct arena *arena = low ? &low_arena : &high;
    uint64_t index = from_list(arena, blocks, align);
    if (index == NONE) {
        uint64_t first = arena->base >> BLOCK_SHIFT;
        uint64_t start = ((first + arena->top + align - 1) & ~(align - 1)) - first;
        if (blocks <= arena->blocks && start <= arena->blocks - blocks) {
            if (start > arena->top) arena_give(arena->base + (arena->top << BLOCK_SHIFT), start - arena->top);
            arena->top = start + blocks;
            index = start;
        } else {
            index = from_longer(arena, blocks, align);
        }
    }
    return index == NONE ? 0 : arena->base + (index << BLOCK_SHIFT);
}

CUdeviceptr arena_take_at(CUdeviceptr wanted, uint64_t blocks) {
    struct arena *arena = arena_of(wanted);
    if (!arena || wanted & (BLOCK - 1)) return 0;
    uint64_t index = (wanted - arena->base) >> BLOCK_SHIFT;
    /* Only what was never given out: a program that asks for a place does so to grow a reservation at its end. */
    if (index < arena->top || blocks > arena->blocks - index) return 0;
    if (index > arena->top) arena_give(arena->base + (arena->top << BLOCK_SHIFT), index - arena->top);
    arena->top = index + blocks;
    return wanted;
}

void arena_give(CUdeviceptr base, uint64_t blocks) {
    struct arena *arena = arena_of(base);
    uint32_t index = (uint32_t)((base - arena->base) >> BLOCK_SHIFT);
    uint32_t *bin = &arena->bin[blocks < BINS ? blocks : 0];
    arena->length[index] = (uint32_t)blocks;
    arena->next[index] = *bin;
    *bin = index;
}

void arena_set(CUdeviceptr base, struct memory *memory) {
    struct arena *arena = arena_of(base);
    uint64_t index = (base - arena->base) >> BLOCK_SHIFT;
    arena->owner[index] = memory;
    arena->starts[index / 64] |= UINT64_C(1) << (index % 64);
}

void arena_clear(CUdeviceptr base) {
    struct arena *arena = arena_of(base);
    uint64_t index = (base - arena->base) >> BLOCK_SHIFT;
    arena->owner[index] = NULL;
    arena->starts[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

bool arena_covers(CUdeviceptr address) {
    return arena_of(address) != NULL;
}

struct memory *arena_find(CUdeviceptr address) {
    struct arena *arena = arena_of(address);
    if (!arena) return NULL;
    uint64_t index = (address - arena->base) >> BLOCK_SHIFT;
    if (index >= arena->top) return NULL;
    struct memory *memory = arena->owner[index];
    if (!memory) { /* inside a longer range: walk back to its start */
        uint64_t word = index / 64;
        uint64_t bits = arena->starts[word] & (~UINT64_C(0) >> (63 - index % 64));
        while (!bits && word > 0)
            bits = arena->starts[--word];
        if (!bits) return NULL;
        index = word * 64 + 63 - (uint64_t)__builtin_clzll(bits);
        memory = arena->owner[index];
    }
    uint64_t blocks = memory->blocks ? memory->blocks : 1;
    return address - memory->base < blocks << BLOCK_SHIFT ? memory : NULL;
}

void arena_drop(CUdeviceptr base, uint64_t bytes) {
    madvise((void *)(uintptr_t)base, (bytes + 4095) & ~UINT64_C(4095), MADV_DONTNEED);
}

void arena_replace(CUdeviceptr base, uint64_t bytes) {
    mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
