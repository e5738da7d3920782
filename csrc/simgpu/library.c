/* Libraries: device code that belongs to no context and is loaded into each that uses it, and kernels of them. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

#define LIBRARY_MAGIC 0x4c696272u

static CUlibrary libraries;

static CUresult load(CUlibrary *result, const void *data) {
    if (!result || !data) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUlibrary library = calloc(1, sizeof *library);
    struct program *program = library ? program_read_locked(data) : NULL;
    if (program) {
        program->users = 1;
        *library = (struct CUlib_st){.magic = LIBRARY_MAGIC, .program = program, .next = libraries};
        libraries = library;
        *result = library;
    }
    driver_unlock();
    if (!program) free(library);
    return program ? CUDA_SUCCESS : library ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuLibraryLoadData, (CUlibrary * library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                          int *options, void **values, unsigned count)) {
    (void)options, (void)values, (void)count;
    ENTER();
    TRY(load(library, code));
    jit_outputs(jit_count, jit, jit_values);
    return CUDA_SUCCESS;
}

CUAPI(cuLibraryLoadFromFile, (CUlibrary * library, const char *path, int *jit, void **jit_values, unsigned jit_count,
                              int *options, void **values, unsigned count)) {
    (void)options, (void)values, (void)count;
    ENTER();
    if (!library || !path) return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    void *data = file_read(path, &result);
    if (data) result = load(library, data);
    free(data);
    if (result == CUDA_SUCCESS) jit_outputs(jit_count, jit, jit_values);
    return result;
}

/* Begins a function about one library: the lock is held where this succeeds. */
static CUresult library_enter(CUlibrary wanted) {
    driver_lock();
    for (CUlibrary library = libraries; library; library = library->next)
        if (library == wanted) return CUDA_SUCCESS;
    driver_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuLibraryUnload, (CUlibrary library)) {
    ENTER();
    TRY(library_enter(library));
    library_forget_modules_locked(library);
    CUlibrary *link = &libraries;
    while (*link != library)
        link = &(*link)->next;
    *link = library->next;
    for (CUfunction kernel = library->kernels, next; kernel; kernel = next) {
        next = kernel->next;
        kernel->magic = 0;
        free(kernel);
    }
    program_drop_locked(library->program);
    library->magic = 0;
    free(library);
    driver_unlock();
    return CUDA_SUCCESS;
}

static CUresult kernel_locked(CUkernel *result, CUlibrary library, const char *name) {
    CUfunction kernel = function_get_locked(&library->kernels, library->program, name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    kernel->library = library;
    if (!kernel->ns && driver.devices) kernel->ns = card_config(0)->kernel_ns;
    *result = (CUkernel)(void *)kernel;
    return CUDA_SUCCESS;
}

CUAPI(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name)) {
    ENTER();
    if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    CUresult result = kernel_locked(kernel, library, name);
    driver_unlock();
    return result;
}

CUAPI(cuLibraryGetKernelCount, (unsigned *count, CUlibrary library)) {
    ENTER();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    *count = 0;
    for (unsigned i = 0; i < library->program->image.symbols; i++)
        *count += library->program->image.symbol[i].kernel;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuLibraryEnumerateKernels, (CUkernel * kernels, unsigned count, CUlibrary library)) {
    ENTER();
    if (!kernels && count) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    for (unsigned i = 0, found = 0; i < library->program->image.symbols && found < count; i++)
        if (library->program->image.symbol[i].kernel)
            kernel_locked(&kernels[found++], library, library->program->image.symbol[i].name);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuLibraryGetModule, (CUmodule * module, CUlibrary library)) {
    ENTER_CONTEXT();
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    CUresult result = library_module_locked(module, library, current_context);
    driver_unlock();
    return result;
}

CUAPI(cuLibraryGetGlobal, (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name)) {
    ENTER_CONTEXT();
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    CUmodule module;
    CUresult result = library_module_locked(&module, library, current_context);
    if (result == CUDA_SUCCESS) result = module_global_locked(module, name, pointer, bytes);
    driver_unlock();
    return result;
}

CUAPI(cuLibraryGetManaged, (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name)) {
    (void)pointer, (void)bytes;
    ENTER();
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    driver_unlock();
    return CUDA_ERROR_NOT_FOUND;
}

CUAPI(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *name)) {
    ENTER();
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    TRY(library_enter(library));
    driver_unlock();
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- kernels ---- */

static CUfunction kernel_check(CUkernel kernel) {
    CUfunction function = (CUfunction)(void *)kernel;
    return function && function->magic == FUNCTION_MAGIC && function->library ? function : NULL;
}

CUresult function_ready(CUfunction function) {
    CUmodule module;
    driver_lock();
    CUresult result = library_module_locked(&module, function->library, current_context);
    driver_unlock();
    return result;
}

CUAPI(cuKernelGetFunction, (CUfunction * function, CUkernel kernel)) {
    ENTER_CONTEXT();
    CUfunction own = kernel_check(kernel);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    CUmodule module;
    driver_lock();
    CUresult result = library_module_locked(&module, own->library, current_context);
    if (result == CUDA_SUCCESS) result = module_function_locked(function, module, own->name);
    driver_unlock();
    return result;
}

CUAPI(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel)) {
    ENTER();
    CUfunction own = kernel_check(kernel);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    *library = own->library;
    return CUDA_SUCCESS;
}

CUAPI(cuKernelGetName, (const char **name, CUkernel kernel)) {
    ENTER();
    CUfunction own = kernel_check(kernel);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = own->name;
    return CUDA_SUCCESS;
}

CUAPI(cuKernelGetAttribute, (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)) {
    ENTER();
    CUfunction own = kernel_check(kernel);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    int version = (int)(card_config(device)->compute_major * 10 + card_config(device)->compute_minor);
    bool is_version = attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION || attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION;
    *value = is_version ? version : own->attribute[attribute];
    return CUDA_SUCCESS;
}

CUAPI(cuKernelSetAttribute, (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)) {
    ENTER();
    CUfunction own = kernel_check(kernel);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    own->attribute[attribute] = value;
    return CUDA_SUCCESS;
}

CUAPI(cuKernelSetCacheConfig, (CUkernel kernel, int config, CUdevice device)) {
    (void)config;
    ENTER();
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return kernel_check(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
