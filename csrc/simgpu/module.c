/* Modules: code and variables take memory of the card as SIM_MODULE, from loading until unloading. */
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE_MAGIC 0x4d6f6475u

static CUmodule modules;

struct program *program_read_locked(const void *data) {
    struct program *program = calloc(1, sizeof *program);
    if (!program) return NULL;
    if (image_read(&program->image, data) < 0) {
        free(program);
        return NULL;
    }
    return program;
}

void program_drop_locked(struct program *program) {
    if (--program->users > 0) return;
    image_free(&program->image);
    free(program);
}

static bool module_valid_locked(CUmodule wanted) {
    for (CUmodule module = modules; module; module = module->next)
        if (module == wanted) return true;
    return false;
}

CUresult module_load_locked(CUmodule *result, CUcontext context, struct program *program, CUlibrary library) {
    CUmodule module = calloc(1, sizeof *module);
    struct memory *memory = memory_new(MEMORY_MODULE, context->device, context);
    if (!module || !memory) {
        free(module);
        if (memory) memory_recycle(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->size = ((program->image.code_bytes + 255) & ~UINT64_C(255)) + program->image.data_bytes + UNIT;
    CUresult taken = memory_take(memory, NULL, false);
    if (taken != CUDA_SUCCESS) {
        memory_recycle(memory);
        free(module);
        return taken;
    }
    *module = (struct CUmod_st){.magic = MODULE_MAGIC,
                                .context = context,
                                .program = program,
                                .library = library,
                                .memory = memory,
                                .next = modules};
    program->users++;
    modules = module;
    *result = module;
    return CUDA_SUCCESS;
}

static void free_functions(CUfunction function) {
    while (function) {
        CUfunction next = function->next;
        function->magic = 0;
        free(function);
        function = next;
    }
}

void module_unload_locked(CUmodule module) {
    CUmodule *link = &modules;
    while (*link != module)
        link = &(*link)->next;
    *link = module->next;
    free_functions(module->functions);
    memory_give(module->memory);
    program_drop_locked(module->program);
    module->magic = 0;
    free(module);
}

void module_release_context_locked(CUcontext context) {
    for (CUmodule module = modules, next; module; module = next) {
        next = module->next;
        if (module->context == context) module_unload_locked(module);
    }
}

void library_forget_modules_locked(CUlibrary library) {
    for (CUmodule module = modules, next; module; module = next) {
        next = module->next;
        if (module->library == library) module_unload_locked(module);
    }
}

CUresult library_module_locked(CUmodule *result, CUlibrary library, CUcontext context) {
    for (CUmodule module = modules; module; module = module->next)
        if (module->library == library && module->context == context) {
            *result = module;
            return CUDA_SUCCESS;
        }
    return module_load_locked(result, context, library->program, library);
}

static CUresult load(CUmodule *result, const void *data) {
    if (!result || !data) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct program *program = program_read_locked(data);
    CUresult status = program ? module_load_locked(result, current_context, program, NULL) : CUDA_ERROR_INVALID_IMAGE;
    if (program && status != CUDA_SUCCESS) {
        program->users = 1;
        program_drop_locked(program);
    }
    driver_unlock();
    return status;
}

void jit_outputs(unsigned count, const int *options, void **values) {
    enum { WALL_TIME = 2, INFO_LOG = 3, INFO_LOG_BYTES = 4, ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };
    for (unsigned i = 0; options && values && i < count; i++) {
        if ((options[i] == INFO_LOG || options[i] == ERROR_LOG) && values[i]) *(char *)values[i] = '\0';
        if (options[i] == WALL_TIME || options[i] == INFO_LOG_BYTES || options[i] == ERROR_LOG_BYTES) values[i] = NULL;
    }
}

CUAPI(cuModuleLoadData, (CUmodule * module, const void *image)) {
    ENTER_CONTEXT();
    return load(module, image);
}

CUAPI(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned count, int *options, void **values)) {
    ENTER_CONTEXT();
    TRY(load(module, image));
    jit_outputs(count, options, values);
    return CUDA_SUCCESS;
}

CUAPI(cuModuleLoadFatBinary, (CUmodule * module, const void *image)) {
    ENTER_CONTEXT();
    return load(module, image);
}

void *file_read(const char *path, CUresult *result) {
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *result = CUDA_ERROR_FILE_NOT_FOUND;
    if (fd < 0) return NULL;
    char *data = NULL;
    if (fstat(fd, &status) == 0 && (data = calloc(1, (size_t)status.st_size + 16))) {
        *result = CUDA_SUCCESS;
        if (read(fd, data, (size_t)status.st_size) != (ssize_t)status.st_size) {
            free(data);
            data = NULL;
            *result = CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    close(fd);
    return data;
}

CUAPI(cuModuleLoad, (CUmodule * module, const char *path)) {
    ENTER_CONTEXT();
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    void *data = file_read(path, &result);
    if (data) result = load(module, data);
    free(data);
    return result;
}

/* Begins a function about one module: the lock is held where this succeeds. */
static CUresult module_enter(CUmodule module) {
    driver_lock();
    if (module_valid_locked(module)) return CUDA_SUCCESS;
    driver_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuModuleUnload, (CUmodule module)) {
    ENTER_CONTEXT();
    TRY(module_enter(module));
    CUresult result = module->library ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) module_unload_locked(module);
    driver_unlock();
    return result;
}

/* "…_500us" lasts half a millisecond, "…_20ms" twenty; all others as the card is configured. */
static uint64_t duration_in(const char *name) {
    size_t end = strlen(name);
    uint64_t scale = 0;
    if (end > 3 && strcmp(name + end - 2, "us") == 0) scale = 1000;
    if (end > 3 && strcmp(name + end - 2, "ms") == 0) scale = 1000000;
    size_t digits = end - 2;
    while (scale && digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9')
        digits--;
    if (!scale || digits == end - 2 || digits == 0 || name[digits - 1] != '_') return 0;
    return strtoull(name + digits, NULL, 10) * scale;
}

CUfunction function_get_locked(CUfunction *list, const struct program *program, const char *name) {
    for (CUfunction function = *list; function; function = function->next)
        if (strcmp(function->name, name) == 0) return function;
    const struct image_symbol *symbol = image_find(&program->image, name, true);
    if (!program->image.sealed && !symbol) return NULL;
    CUfunction function = calloc(1, sizeof *function + strlen(name) + 1);
    if (!function) return NULL;
    function->magic = FUNCTION_MAGIC;
    function->ns = duration_in(name);
    if (symbol) function->local_bytes = (uint32_t)symbol->bytes;
    function->attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)function->local_bytes;
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
    strcpy(function->name, name);
    function->next = *list;
    *list = function;
    return function;
}

CUresult module_function_locked(CUfunction *result, CUmodule module, const char *name) {
    CUfunction function = function_get_locked(&module->functions, module->program, name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    const struct sim_card_config *card = card_config(module->context->device);
    function->module = module;
    function->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = (int)(card->compute_major * 10 + card->compute_minor);
    function->attribute[CU_FUNC_ATTRIBUTE_PTX_VERSION] = function->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION];
    if (!function->ns) function->ns = card->kernel_ns;
    *result = function;
    return CUDA_SUCCESS;
}

CUAPI(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name)) {
    ENTER_CONTEXT();
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    TRY(module_enter(module));
    CUresult result = module_function_locked(function, module, name);
    driver_unlock();
    return result;
}

CUAPI(cuModuleGetFunctionCount, (unsigned *count, CUmodule module)) {
    ENTER_CONTEXT();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    TRY(module_enter(module));
    *count = 0;
    for (unsigned i = 0; i < module->program->image.symbols; i++)
        *count += module->program->image.symbol[i].kernel;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned count, CUmodule module)) {
    ENTER_CONTEXT();
    if (!functions && count) return CUDA_ERROR_INVALID_VALUE;
    TRY(module_enter(module));
    for (unsigned i = 0, found = 0; i < module->program->image.symbols && found < count; i++)
        if (module->program->image.symbol[i].kernel)
            module_function_locked(&functions[found++], module, module->program->image.symbol[i].name);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult module_global_locked(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes) {
    const struct image *image = &module->program->image;
    const struct image_symbol *symbol = image_find(image, name, false);
    if (!symbol) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = module->memory->base + ((image->code_bytes + 255) & ~UINT64_C(255)) + symbol->offset;
    if (bytes) *bytes = symbol->bytes;
    return CUDA_SUCCESS;
}

CUAPI(cuModuleGetGlobal_v2, (CUdeviceptr * pointer, size_t *bytes, CUmodule module, const char *name)) {
    ENTER_CONTEXT();
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    TRY(module_enter(module));
    CUresult result = module_global_locked(module, name, pointer, bytes);
    driver_unlock();
    return result;
}

CUAPI(cuModuleGetTexRef, (CUtexref * reference, CUmodule module, const char *name)) {
    ENTER_CONTEXT();
    (void)module;
    return reference && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuModuleGetSurfRef, (CUsurfref * reference, CUmodule module, const char *name)) {
    ENTER_CONTEXT();
    (void)module;
    return reference && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

/* Everything is loaded at once here. */
CUAPI(cuModuleGetLoadingMode, (int *mode)) {
    ENTER();
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 1;
    return CUDA_SUCCESS;
}
