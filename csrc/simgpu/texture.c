/* Texture and surface objects, and user objects: names for the program to keep, nothing of the card. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static CUresult make(unsigned long long *object, const void *description) {
    ENTER_CONTEXT();
    if (!object || !description) return CUDA_ERROR_INVALID_VALUE;
    *object = next_id();
    return CUDA_SUCCESS;
}

CUAPI(cuTexObjectCreate, (CUtexObject * object, const void *resource, const void *texture, const void *resource_view)) {
    (void)resource_view;
    return texture ? make(object, resource) : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuTexObjectDestroy, (CUtexObject object)) {
    ENTER_CONTEXT();
    return object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuSurfObjectCreate, (CUsurfObject * object, const void *resource)) {
    return make(object, resource);
}

CUAPI(cuSurfObjectDestroy, (CUsurfObject object)) {
    ENTER_CONTEXT();
    return object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct CUuserObject_st {
    CUhostFn destroy;
    void *data;
    unsigned references;
};

CUAPI(cuUserObjectCreate, (CUuserObject * object, void *data, CUhostFn destroy, unsigned references, unsigned flags)) {
    ENTER();
    if (!object || !destroy || references == 0 || flags != 1) return CUDA_ERROR_INVALID_VALUE;
    *object = calloc(1, sizeof **object);
    if (!*object) return CUDA_ERROR_OUT_OF_MEMORY;
    **object = (struct CUuserObject_st){.destroy = destroy, .data = data, .references = references};
    return CUDA_SUCCESS;
}

CUAPI(cuUserObjectRetain, (CUuserObject object, unsigned count)) {
    ENTER();
    if (!object || count == 0) return CUDA_ERROR_INVALID_VALUE;
    __atomic_fetch_add(&object->references, count, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUAPI(cuUserObjectRelease, (CUuserObject object, unsigned count)) {
    ENTER();
    if (!object || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (__atomic_sub_fetch(&object->references, count, __ATOMIC_ACQ_REL) > 0) return CUDA_SUCCESS;
    object->destroy(object->data);
    free(object);
    return CUDA_SUCCESS;
}

CUAPI(cuProfilerStart, (void)) {
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}

CUAPI(cuProfilerStop, (void)) {
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}
