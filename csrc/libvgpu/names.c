#include "names.h"

#include "hooks.h"
#include "object.h"

/* The pool: one member per symbol, so that offsetof() gives constants. */
static const struct pool {
#define CU(symbol, ...)       char symbol[sizeof #symbol];
#define NVML(symbol, ...)     char symbol[sizeof #symbol];
#define LIBC(symbol)          char symbol[sizeof #symbol];
#define USE_CU(symbol, ...)   char symbol[sizeof #symbol];
#define USE_NVML(symbol, ...) char symbol[sizeof #symbol];
#include "hooks.def"
} pool = {
#define CU(symbol, ...)       .symbol = #symbol,
#define NVML(symbol, ...)     .symbol = #symbol,
#define LIBC(symbol)          .symbol = #symbol,
#define USE_CU(symbol, ...)   .symbol = #symbol,
#define USE_NVML(symbol, ...) .symbol = #symbol,
#include "hooks.def"
};

enum { ANY = false, PER_THREAD = true };

static const struct vgpu_name names[VGPU_FUNCTIONS] = {
#define OFFSET(symbol) (unsigned short)offsetof(struct pool, symbol)
#define CU(symbol, base, since, stream, ...)                                                                           \
    [VGPU_FN_##symbol] = {OFFSET(symbol), sizeof #base - 1, stream, VGPU_DRIVER, since},
#define NVML(symbol, ...)     [VGPU_FN_##symbol] = {OFFSET(symbol), sizeof #symbol - 1, ANY, VGPU_NVML, 0},
#define LIBC(symbol)          [VGPU_FN_##symbol] = {OFFSET(symbol), sizeof #symbol - 1, ANY, VGPU_LIBC, 0},
#define USE_CU(symbol, ...)   [VGPU_FN_##symbol] = {OFFSET(symbol), sizeof #symbol - 1, ANY, VGPU_DRIVER, 0},
#define USE_NVML(symbol, ...) [VGPU_FN_##symbol] = {OFFSET(symbol), sizeof #symbol - 1, ANY, VGPU_NVML, 0},
#include "hooks.def"
};
_Static_assert(sizeof(struct pool) <= 65535, "offsets into the pool are 16 bits");

const struct vgpu_name *vgpu_name_entry(unsigned int function) {
    return &names[function];
}

const char *vgpu_name_symbol(unsigned int function) {
    return (const char *)&pool + names[function].offset;
}

unsigned int vgpu_name_lower_bound(const char *name) {
    unsigned int low = 0, high = VGPU_HOOKS;
    while (low < high) {
        unsigned int middle = (low + high) / 2;
        if (vgpu_compare(vgpu_name_symbol(middle), name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

unsigned int vgpu_name_find(const char *name) {
    unsigned int function = vgpu_name_is_likely(name) ? vgpu_name_lower_bound(name) : VGPU_HOOKS;
    return function < VGPU_HOOKS && vgpu_compare(vgpu_name_symbol(function), name) == 0 ? function : VGPU_HOOKS;
}

/* Distances from the table to the hooks: known when the library is linked, where pointers would be a relocation each
 * in every process. C has no constant expression for them. */
#define CU(symbol, ...)   ".long " #symbol " - vgpu_hook_distances\n"
#define NVML(symbol, ...) ".long " #symbol " - vgpu_hook_distances\n"
#define LIBC(symbol)      ".long " #symbol " - vgpu_hook_distances\n"
__asm__(".section .rodata.vgpu_hook_distances,\"a\"\n"
        ".balign 4\n"
        ".hidden vgpu_hook_distances\n"
        ".globl vgpu_hook_distances\n"
        "vgpu_hook_distances:\n"
#include "hooks.def"
        ".previous\n");
extern const int32_t vgpu_hook_distances[VGPU_HOOKS] __attribute__((visibility("hidden")));

void *vgpu_name_hook(unsigned int function) {
    return (void *)((uintptr_t)vgpu_hook_distances + (uintptr_t)(intptr_t)vgpu_hook_distances[function]);
}
