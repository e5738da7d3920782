/* Modules, libraries and streams: code, constants, globals and queues take memory of the card, how much only the card
 * knows. It is measured around each call that may bring or take some (measure.h) and kept as one sum for each device:
 * small modules share blocks, those of several contexts too, so what one of them took isn't what goes with it. What
 * doesn't fit is taken down again. */
#include <stdlib.h>

#include "body.h"
#include "launch.h"
#include "measure.h"

enum direction { COMES, MUST_FIT };

/* What came is charged; if it went, that is none of this call's. false: it must fit and doesn't. */
static bool settle(struct vgpu_process *process, const struct vgpu_measure *before, CUresult result,
                   enum direction direction) {
    if (direction == MUST_FIT && result != CUDA_SUCCESS) return true;
    int64_t change = vgpu_measure_change(process, before, 0);
    if (change <= 0) return true;
    if (direction == COMES)
        vgpu_charge_anyway(process, before->device, VGPU_KIND_MODULE, (uint64_t)change);
    else if (vgpu_charge(process, before->device, VGPU_KIND_MODULE, (uint64_t)change) != CUDA_SUCCESS)
        return false;
    process->module_bytes[before->device] += (uint64_t)change;
    return true;
}

/* Any call after which code may have come: a library's is loaded into a context by the first call that needs it there,
 * and can't be unloaded alone. `then` is done if it succeeds, and may load code too. */
#define FOLLOW(call, then)                                                                                             \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, call);                                                                             \
        struct vgpu_place place;                                                                                       \
        struct vgpu_measure before;                                                                                    \
        if (!vgpu_place_current(process, &place)) return call;                                                         \
        vgpu_private_lock(&process->birth_lock);                                                                       \
        vgpu_measure_start(process, place.device, &before);                                                            \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS) then;                                                                              \
        settle(process, &before, result, COMES);                                                                       \
        vgpu_private_unlock(&process->birth_lock);                                                                     \
        return result;                                                                                                 \
    } while (0)

/* Loads by `load(out, ...)`. The program sees the handle only once it is there to stay:
 * what must be unloaded again mustn't be out of reach by then. */
#define LOAD(handle, out, load, unload, ...)                                                                           \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, load(out, __VA_ARGS__));                                                           \
        struct vgpu_place place;                                                                                       \
        struct vgpu_measure before;                                                                                    \
        handle loaded = NULL;                                                                                          \
        if (!(out) || !vgpu_place_current(process, &place)) return load(out, __VA_ARGS__);                             \
        vgpu_private_lock(&process->birth_lock);                                                                       \
        vgpu_measure_start(process, place.device, &before);                                                            \
        CUresult result = load(&loaded, __VA_ARGS__);                                                                  \
        if (!settle(process, &before, result, MUST_FIT)) {                                                             \
            unload(loaded);                                                                                            \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                                         \
        }                                                                                                              \
        vgpu_private_unlock(&process->birth_lock);                                                                     \
        if (result == CUDA_SUCCESS) *(out) = loaded;                                                                   \
        return result;                                                                                                 \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    LOAD(CUmodule, module, real_cuModuleLoad, real_cuModuleUnload, fname);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD(CUmodule, module, real_cuModuleLoadData, real_cuModuleUnload, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, int *options,
                            void **optionValues) {
    LOAD(CUmodule, module, real_cuModuleLoadDataEx, real_cuModuleUnload, image, numOptions, options, optionValues);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    LOAD(CUmodule, module, real_cuModuleLoadFatBinary, real_cuModuleUnload, fatCubin);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    LOAD(CUlibrary, library, real_cuLibraryLoadData, real_cuLibraryUnload, code, jitOptions, jitOptionsValues,
         numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, int *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    LOAD(CUlibrary, library, real_cuLibraryLoadFromFile, real_cuLibraryUnload, fileName, jitOptions, jitOptionsValues,
         numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
}

void vgpu_modules_watch(struct vgpu_process *process, struct vgpu_modules *modules) {
    for (int device = 0; device < VGPU_MAX_DEVICES; device++) {
        modules->watched[device] = process->module_bytes[device] != 0;
        if (modules->watched[device]) vgpu_measure_start(process, device, &modules->before[device]);
    }
}

void vgpu_modules_settle(struct vgpu_process *process, const struct vgpu_modules *modules) {
    for (int device = 0; device < VGPU_MAX_DEVICES; device++) {
        if (!modules->watched[device]) continue;
        uint64_t gone = process->module_bytes[device];
        int64_t change = vgpu_measure_change(process, &modules->before[device], 0);
        if (vgpu_context_any(process, device)) {
            uint64_t less = change < 0 ? (uint64_t)-change : 0;
            if (less < gone) gone = less;
        }
        process->module_bytes[device] -= gone;
        vgpu_uncharge(process, device, VGPU_KIND_MODULE, gone);
    }
}

/* Wherever it was loaded: the current context needn't be one of those. The handle of a kernel that goes with it may be
 * given out for another one, of which nothing is known then. */
#define UNLOAD(call)                                                                                                   \
    do {                                                                                                               \
        VGPU_BEGIN_RELEASE_UNGATED(process, call);                                                                     \
        struct vgpu_modules modules;                                                                                   \
        vgpu_private_lock(&process->birth_lock);                                                                       \
        vgpu_table_take_each(&process->tables[VGPU_KERNELS], NULL, NULL, NULL);                                        \
        vgpu_modules_watch(process, &modules);                                                                         \
        CUresult result = call;                                                                                        \
        vgpu_modules_settle(process, &modules);                                                                        \
        vgpu_private_unlock(&process->birth_lock);                                                                     \
        return result;                                                                                                 \
    } while (0)

CUresult cuModuleUnload(CUmodule hmod) {
    UNLOAD(real_cuModuleUnload(hmod));
}

CUresult cuLibraryUnload(CUlibrary library) {
    UNLOAD(real_cuLibraryUnload(library));
}

/* A kernel of a library may be launched as it is, and the launch would load its code: no call to measure around. So it
 * is loaded here, if it can be. */
CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    VGPU_BEGIN_UNGATED(process, real_cuLibraryGetKernel(pKernel, library, name));
    struct vgpu_place place;
    struct vgpu_measure before;
    CUfunction function;
    CUkernel kernel = NULL;
    if (!pKernel) return real_cuLibraryGetKernel(pKernel, library, name);
    CUresult result = real_cuLibraryGetKernel(&kernel, library, name);
    if (result != CUDA_SUCCESS) return result;
    if (vgpu_place_current(process, &place)) {
        vgpu_private_lock(&process->birth_lock);
        vgpu_measure_start(process, place.device, &before);
        if (real_cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS) settle(process, &before, CUDA_SUCCESS, COMES);
        vgpu_private_unlock(&process->birth_lock);
    }
    vgpu_launch_learn_kernel(process, kernel);
    *pKernel = kernel;
    return result;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    FOLLOW(real_cuLibraryGetModule(pMod, library), (void)0);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    FOLLOW(real_cuLibraryGetGlobal(dptr, bytes, library, name), (void)0);
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    FOLLOW(real_cuLibraryGetManaged(dptr, bytes, library, name), (void)0);
}

/* The CUDA runtime asks at every launch of some libraries' kernels; code comes the first time. */
CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    VGPU_BEGIN_UNGATED(process, real_cuKernelGetFunction(pFunc, kernel));
    struct vgpu_place place;
    struct vgpu_measure before;
    struct vgpu_entry entry;
    CUfunction function = NULL;
    if (!pFunc || !vgpu_place_current(process, &place)) return real_cuKernelGetFunction(pFunc, kernel);
    uint64_t key = (uint64_t)(uintptr_t)kernel | (uint64_t)place.context << 48; /* no address is longer */
    if (kernel && vgpu_table_find(&process->tables[VGPU_KERNELS], key, &entry))
        return real_cuKernelGetFunction(pFunc, kernel);
    vgpu_private_lock(&process->birth_lock);
    vgpu_measure_start(process, place.device, &before);
    CUresult result = real_cuKernelGetFunction(&function, kernel);
    if (result == CUDA_SUCCESS) {
        vgpu_launch_learn_function(process, function);
        settle(process, &before, result, COMES);
        vgpu_table_put(&process->tables[VGPU_KERNELS], &(struct vgpu_entry){.key = key, .context = place.context});
        *pFunc = function;
    }
    vgpu_private_unlock(&process->birth_lock);
    return result;
}

/* With CUDA_MODULE_LOADING=LAZY, the default since 11.7, a module's code arrives when a function of it is asked for. */
static CUresult get_function(CUfunction *function, CUmodule module, const char *name) {
    FOLLOW(real_cuModuleGetFunction(function, module, name), vgpu_launch_learn_function(process, *function));
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    CUfunction function = NULL;
    CUresult result = hfunc ? get_function(&function, hmod, name) : real_cuModuleGetFunction(hfunc, hmod, name);
    if (hfunc && result == CUDA_SUCCESS) *hfunc = function;
    return result;
}

/* All of them come into a list of our own, and the program gets what was looked at. */
#define ENUMERATE(handle, list, count, owner, count_of, enumerate, learn)                                              \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, enumerate(list, count, owner));                                                    \
        unsigned int there = 0;                                                                                        \
        if (!(list) || !(count) || count_of(&there, owner) != CUDA_SUCCESS) return enumerate(list, count, owner);      \
        if (there > (count)) there = (count);                                                                          \
        handle *copy = calloc(there ? there : 1, sizeof *copy);                                                        \
        if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;                                                                    \
        CUresult result = enumerate(copy, there, owner);                                                               \
        for (unsigned int i = 0; result == CUDA_SUCCESS && i < there; i++) {                                           \
            learn;                                                                                                     \
            (list)[i] = copy[i];                                                                                       \
        }                                                                                                              \
        free(copy);                                                                                                    \
        return result;                                                                                                 \
    } while (0)

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
    ENUMERATE(CUfunction, functions, numFunctions, mod, real_cuModuleGetFunctionCount, real_cuModuleEnumerateFunctions,
              vgpu_launch_learn_function(process, copy[i]));
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
    ENUMERATE(CUkernel, kernels, numKernels, lib, real_cuLibraryGetKernelCount, real_cuLibraryEnumerateKernels,
              vgpu_launch_learn_kernel(process, copy[i]));
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name) {
    FOLLOW(real_cuModuleGetGlobal(dptr, bytes, hmod, name), (void)0);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
    FOLLOW(real_cuModuleGetGlobal_v2(dptr, bytes, hmod, name), (void)0);
}

CUresult cuFuncLoad(CUfunction function) {
    FOLLOW(real_cuFuncLoad(function), (void)0);
}

/* A stream takes about half a MiB: some begin a block, and what a destroyed one had the driver keeps for the next. So a
 * block must be left, and how much was taken is measured. */
static CUresult reserve_stream(struct vgpu_process *process, int device, struct vgpu_measure *before) {
    vgpu_private_lock(&process->birth_lock);
    CUresult result = vgpu_charge(process, device, VGPU_KIND_MODULE, VGPU_BLOCK_BYTES);
    if (result == CUDA_SUCCESS)
        vgpu_measure_start(process, device, before);
    else
        vgpu_private_unlock(&process->birth_lock);
    return result;
}

static void settle_stream(struct vgpu_process *process, const struct vgpu_measure *before, CUresult result) {
    int64_t change = vgpu_measure_change(process, before, result == CUDA_SUCCESS ? VGPU_BLOCK_BYTES : 0);
    uint64_t grown = change > 0 ? (uint64_t)change : 0;
    if (grown > VGPU_BLOCK_BYTES)
        vgpu_charge_anyway(process, before->device, VGPU_KIND_MODULE, grown - VGPU_BLOCK_BYTES);
    else
        vgpu_uncharge(process, before->device, VGPU_KIND_MODULE, VGPU_BLOCK_BYTES - grown);
    process->module_bytes[before->device] += grown;
    vgpu_private_unlock(&process->birth_lock);
}

/* `find` tells where: &place is filled in, or the driver's own answer is wanted. */
#define STREAM(out, find, create, ...)                                                                                 \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, create(out, __VA_ARGS__));                                                         \
        struct vgpu_place place;                                                                                       \
        struct vgpu_measure before;                                                                                    \
        CUstream made = NULL;                                                                                          \
        if (!(out) || !(find)) return create(out, __VA_ARGS__);                                                        \
        CUresult result = reserve_stream(process, place.device, &before);                                              \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        result = create(&made, __VA_ARGS__);                                                                           \
        settle_stream(process, &before, result);                                                                       \
        if (result == CUDA_SUCCESS) *(out) = made;                                                                     \
        return result;                                                                                                 \
    } while (0)

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    STREAM(phStream, vgpu_place_current(process, &place), real_cuStreamCreate, Flags);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    STREAM(phStream, vgpu_place_current(process, &place), real_cuStreamCreateWithPriority, flags, priority);
}

/* Whichever context is current. */
static bool place_of_green(struct vgpu_process *process, CUgreenCtx green, struct vgpu_place *place) {
    CUcontext handle = NULL;
    return real_cuCtxFromGreenCtx(&handle, green) == CUDA_SUCCESS && handle && vgpu_place_from(process, handle, place);
}

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
    STREAM(phStream, place_of_green(process, greenCtx, &place), real_cuGreenCtxStreamCreate, greenCtx, flags, priority);
}
