/* Modules and libraries: code, constants and globals take memory of the card, how much only the card knows. It is
 * measured around each call that may load or unload code (measure.h) and kept as one sum for each context, with which
 * it goes. What doesn't fit is unloaded again. */
#include "body.h"
#include "measure.h"

enum direction { COMES, MUST_FIT, GOES };

/* What came is charged, what went is given back; a change in the other direction is none of this call's. false: it must
 * fit and doesn't. */
static bool settle(struct vgpu_process *process, const struct vgpu_place *place, const struct vgpu_measure *before,
                   CUresult result, enum direction direction) {
    if (direction == MUST_FIT && result != CUDA_SUCCESS) return true;
    int64_t change = vgpu_measure_change(process, before, 0);
    struct vgpu_context *context = place->context ? &process->contexts[place->context - 1] : NULL;
    if (change > 0 && direction != GOES) {
        if (direction == MUST_FIT) {
            if (vgpu_charge(process, place->device, VGPU_KIND_MODULE, (uint64_t)change) != CUDA_SUCCESS) return false;
        } else {
            vgpu_charge_anyway(process, place->device, VGPU_KIND_MODULE, (uint64_t)change);
        }
        if (context) context->module_bytes += (uint64_t)change;
    } else if (change < 0 && direction == GOES && context) {
        uint64_t less = (uint64_t)-change < context->module_bytes ? (uint64_t)-change : context->module_bytes;
        context->module_bytes -= less;
        vgpu_uncharge(process, place->device, VGPU_KIND_MODULE, less);
    }
    return true;
}

/* Any call after which code may have come (a library's is loaded into a context by the first call that needs it there,
 * and can't be unloaded alone) or gone. `undo` runs when it must fit and doesn't. */
#define AROUND(direction, call, undo)                                                                                  \
    do {                                                                                                               \
        VGPU_BEGIN_UNGATED(process, call);                                                                             \
        struct vgpu_place place;                                                                                       \
        struct vgpu_measure before;                                                                                    \
        if (!vgpu_place_current(process, &place)) return call;                                                         \
        vgpu_private_lock(&process->birth_lock);                                                                       \
        vgpu_measure_start(process, place.device, &before);                                                            \
        CUresult result = call;                                                                                        \
        if (!settle(process, &place, &before, result, direction)) {                                                    \
            undo;                                                                                                      \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                                         \
        }                                                                                                              \
        vgpu_private_unlock(&process->birth_lock);                                                                     \
        return result;                                                                                                 \
    } while (0)

#define LOAD(call, undo)    AROUND(MUST_FIT, call, undo)
#define FOLLOW(which, call) AROUND(which, call, (void)0)

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    LOAD(real_cuModuleLoad(module, fname), real_cuModuleUnload(*module));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD(real_cuModuleLoadData(module, image), real_cuModuleUnload(*module));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, int *options,
                            void **optionValues) {
    LOAD(real_cuModuleLoadDataEx(module, image, numOptions, options, optionValues), real_cuModuleUnload(*module));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    LOAD(real_cuModuleLoadFatBinary(module, fatCubin), real_cuModuleUnload(*module));
}

CUresult cuModuleUnload(CUmodule hmod) {
    FOLLOW(GOES, real_cuModuleUnload(hmod));
}

CUresult cuLibraryUnload(CUlibrary library) {
    FOLLOW(GOES, real_cuLibraryUnload(library));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    LOAD(real_cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                libraryOptionValues, numLibraryOptions),
         real_cuLibraryUnload(*library));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, int *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    LOAD(real_cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                    libraryOptionValues, numLibraryOptions),
         real_cuLibraryUnload(*library));
}

/* A kernel of a library may be launched as it is, and the launch would load its code: no call to measure around. So it
 * is loaded here. */
CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    VGPU_BEGIN_UNGATED(process, real_cuLibraryGetKernel(pKernel, library, name));
    struct vgpu_place place;
    struct vgpu_measure before;
    CUfunction function;
    CUresult result = real_cuLibraryGetKernel(pKernel, library, name);
    if (result != CUDA_SUCCESS || !pKernel || !vgpu_place_current(process, &place)) return result;
    vgpu_private_lock(&process->birth_lock);
    vgpu_measure_start(process, place.device, &before);
    if (real_cuKernelGetFunction(&function, *pKernel) == CUDA_SUCCESS)
        settle(process, &place, &before, CUDA_SUCCESS, COMES);
    vgpu_private_unlock(&process->birth_lock);
    return result;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    FOLLOW(COMES, real_cuLibraryGetModule(pMod, library));
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    FOLLOW(COMES, real_cuLibraryGetGlobal(dptr, bytes, library, name));
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    FOLLOW(COMES, real_cuLibraryGetManaged(dptr, bytes, library, name));
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    FOLLOW(COMES, real_cuKernelGetFunction(pFunc, kernel));
}

/* With CUDA_MODULE_LOADING=LAZY, the default since 11.7, a module's code arrives when a function of it is asked for. */
CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    FOLLOW(COMES, real_cuModuleGetFunction(hfunc, hmod, name));
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name) {
    FOLLOW(COMES, real_cuModuleGetGlobal(dptr, bytes, hmod, name));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
    FOLLOW(COMES, real_cuModuleGetGlobal_v2(dptr, bytes, hmod, name));
}

CUresult cuFuncLoad(CUfunction function) {
    FOLLOW(COMES, real_cuFuncLoad(function));
}
