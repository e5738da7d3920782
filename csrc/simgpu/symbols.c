/* Exports every name of the driver. What other files implement wins over the weak definitions here. */
#include "symbols.h"

#include "driver.h"

/* The one answer of all functions that have nothing to do with memory and that no client here needs. */
CUresult sim_not_supported(void) {
    return driver_alive() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
}

/* A jump, because it carries any parameters and a weak alias can't reach into another file. */
#if defined(__x86_64__)
#define JUMP "jmp "
#define PLT  "@PLT"
#elif defined(__aarch64__)
#define JUMP "b "
#define PLT  ""
#endif

#define WEAK_JUMP(symbol, target)                                                                                      \
    __asm__(".text\n.weak " #symbol "\n.type " #symbol ", %function\n" #symbol ":\n\t" JUMP #target PLT "\n");

#define FUNCTION(name, version, symbol)           WEAK_JUMP(symbol, sim_not_supported)
#define PER_THREAD(name, version, symbol, legacy) WEAK_JUMP(symbol, legacy)
#define EXPORTED(symbol)                          WEAK_JUMP(symbol, sim_not_supported)
#include "symbols.def"
#undef FUNCTION
#undef PER_THREAD
#undef EXPORTED

/* Declared as bytes: only the addresses are needed here. */
#define FUNCTION(name, version, symbol)           extern const char symbol[];
#define PER_THREAD(name, version, symbol, legacy) extern const char symbol[];
#define EXPORTED(symbol)
#include "symbols.def"
#undef FUNCTION
#undef PER_THREAD

const struct symbol symbols[] = {
#define FUNCTION(name, version, symbol)           {#name, symbol, version, false},
#define PER_THREAD(name, version, symbol, legacy) {#name, symbol, version, true},
#include "symbols.def"
};

const unsigned symbols_count = sizeof symbols / sizeof symbols[0];
