/* What a function is, and how many of its blocks fit. */
#include "module.h"

static CUresult check(CUfunction function) {
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function)) {
    ENTER_CONTEXT();
    TRY(check(function));
    if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = function->attribute[attribute];
    return CUDA_SUCCESS;
}

CUAPI(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value)) {
    ENTER_CONTEXT();
    TRY(check(function));
    if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    function->attribute[attribute] = value;
    return CUDA_SUCCESS;
}

CUAPI(cuFuncSetCacheConfig, (CUfunction function, int config)) {
    (void)config;
    ENTER_CONTEXT();
    return check(function);
}

CUAPI(cuFuncSetSharedMemConfig, (CUfunction function, int config)) {
    (void)config;
    ENTER_CONTEXT();
    return check(function);
}

CUAPI(cuFuncGetModule, (CUmodule * module, CUfunction function)) {
    ENTER_CONTEXT();
    TRY(check(function));
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = function->module;
    return CUDA_SUCCESS;
}

CUAPI(cuFuncGetName, (const char **name, CUfunction function)) {
    ENTER();
    TRY(check(function));
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

CUAPI(cuFuncIsLoaded, (int *state, CUfunction function)) {
    ENTER();
    TRY(check(function));
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = 1;
    return CUDA_SUCCESS;
}

CUAPI(cuFuncLoad, (CUfunction function)) {
    ENTER();
    return check(function);
}

static CUresult occupancy(int *blocks, CUfunction function, int block_threads) {
    TRY(check(function));
    if (!blocks || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    int most = (int)multiprocessor_threads(current_context->device) / block_threads;
    *blocks = block_threads > 1024 ? 0 : most > 16 ? 16 : most;
    return CUDA_SUCCESS;
}

CUAPI(cuOccupancyMaxActiveBlocksPerMultiprocessor,
      (int *blocks, CUfunction function, int block_threads, size_t dynamic_bytes)) {
    (void)dynamic_bytes;
    ENTER_CONTEXT();
    return occupancy(blocks, function, block_threads);
}

CUAPI(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *blocks, CUfunction function, int block_threads, size_t dynamic_bytes, unsigned flags)) {
    (void)dynamic_bytes, (void)flags;
    ENTER_CONTEXT();
    return occupancy(blocks, function, block_threads);
}

static CUresult best_block(int *grid, int *threads, CUfunction function, int most) {
    TRY(check(function));
    if (!grid || !threads) return CUDA_ERROR_INVALID_VALUE;
    *threads = most > 0 && most < 1024 ? most : 1024;
    *grid = (int)card_config(current_context->device)->multiprocessors;
    return CUDA_SUCCESS;
}

CUAPI(cuOccupancyMaxPotentialBlockSize,
      (int *grid, int *threads, CUfunction function, CUoccupancyB2DSize dynamic, size_t dynamic_bytes, int most)) {
    (void)dynamic, (void)dynamic_bytes;
    ENTER_CONTEXT();
    return best_block(grid, threads, function, most);
}

CUAPI(cuOccupancyMaxPotentialBlockSizeWithFlags,
      (int *grid, int *threads, CUfunction function, CUoccupancyB2DSize dynamic, size_t dynamic_bytes, int most,
       unsigned flags)) {
    (void)dynamic, (void)dynamic_bytes, (void)flags;
    ENTER_CONTEXT();
    return best_block(grid, threads, function, most);
}

CUAPI(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *bytes, CUfunction function, int blocks, int threads)) {
    (void)threads;
    ENTER_CONTEXT();
    TRY(check(function));
    if (!bytes || blocks <= 0) return CUDA_ERROR_INVALID_VALUE;
    *bytes = 65536u / (unsigned)blocks;
    return CUDA_SUCCESS;
}
