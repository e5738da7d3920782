/* Modules, functions and libraries, as launches and graphs use them. */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "image.h"
#include "memory.h"

struct program { /* an image, shared by a library and the modules made of it */
    struct image image;
    unsigned users;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    struct program *program;
    CUlibrary library; /* NULL for one that was loaded as a module */
    struct memory *memory;
    CUfunction functions;
    struct CUmod_st *next;
};

/* A function of a module, and a kernel of a library: launches take either. */
struct CUfunc_st {
    uint32_t magic;
    CUmodule module;      /* NULL for a kernel */
    CUlibrary library;    /* of a kernel */
    uint64_t ns;          /* how long a launch lasts */
    uint32_t local_bytes; /* of local memory that each thread needs */
    int attribute[CU_FUNC_ATTRIBUTE_MAX];
    struct CUfunc_st *next;
    char name[];
};

struct CUlib_st {
    uint32_t magic;
    struct program *program;
    CUfunction kernels;
    struct CUlib_st *next;
};

#define FUNCTION_MAGIC 0x46756e63u

struct program *program_read_locked(const void *data);
void program_drop_locked(struct program *program);
/* Loads into the context, taking memory of its card. */
CUresult module_load_locked(CUmodule *result, CUcontext context, struct program *program, CUlibrary library);
void module_unload_locked(CUmodule module);
CUfunction function_get_locked(CUfunction *list, const struct program *program, const char *name);
/* The library's module in a context, loaded on first use. */
CUresult library_module_locked(CUmodule *result, CUlibrary library, CUcontext context);
CUresult module_function_locked(CUfunction *result, CUmodule module, const char *name);
void library_forget_modules_locked(CUlibrary library);
CUresult module_global_locked(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes);
/* A function that can be launched in the current context: kernels of libraries are loaded into it. */
CUresult function_ready(CUfunction function);
/* Counts a kernel that a graph launches in the context (launch.c). */
void launch_counted(CUcontext context);
/* Reads a whole file; NULL with *result set. */
void *file_read(const char *path, CUresult *result);
/* Answers a loader's JIT options that are outputs: logs stay empty. */
void jit_outputs(unsigned count, const int *options, void **values);

#endif
