/* The device linker: keeps what it is given and puts it into one image of our own. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

#define LINK_MAGIC 0x4c696e6bu

struct CUlinkState_st {
    uint32_t magic;
    struct linked *result;
};

static CUresult create(CUlinkState *result, unsigned count, const int *options, void **values) {
    if (!result) return CUDA_ERROR_INVALID_VALUE;
    CUlinkState state = calloc(1, sizeof *state);
    if (state) state->result = calloc(1, sizeof *state->result);
    if (!state || !state->result) {
        free(state);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    state->magic = LINK_MAGIC;
    *state->result = (struct linked){.magic = LINKED_MAGIC, .bytes = sizeof *state->result};
    jit_outputs(count, options, values);
    *result = state;
    return CUDA_SUCCESS;
}

/* Kept with a NUL behind, whatever it is: PTX may come without one. */
static CUresult add(CUlinkState state, const void *data, uint64_t bytes) {
    if (!state || state->magic != LINK_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    if (!data || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t room = sizeof bytes + ((bytes + 8) & ~UINT64_C(7));
    struct linked *larger = realloc(state->result, state->result->bytes + room);
    if (!larger) return CUDA_ERROR_OUT_OF_MEMORY;
    char *at = (char *)larger + larger->bytes;
    memset(at, 0, room);
    memcpy(at, &bytes, sizeof bytes);
    memcpy(at + sizeof bytes, data, bytes);
    larger->bytes += room;
    larger->images++;
    state->result = larger;
    return CUDA_SUCCESS;
}

static CUresult add_file(CUlinkState state, const char *path) {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    void *data = file_read(path, &result);
    if (data) {
        size_t bytes = image_bytes(data);
        result = bytes ? add(state, data, bytes) : add(state, data, 1); /* an archive: counts as almost nothing */
    }
    free(data);
    return result;
}

CUAPI(cuLinkCreate_v2, (unsigned count, int *options, void **values, CUlinkState *state)) {
    ENTER_CONTEXT();
    return create(state, count, options, values);
}

CUAPI(cuLinkCreate, (unsigned count, int *options, void **values, CUlinkState *state)) {
    ENTER_CONTEXT();
    return create(state, count, options, values);
}

CUAPI(cuLinkAddData_v2, (CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                         int *options, void **values)) {
    (void)type, (void)name, (void)count, (void)options, (void)values;
    ENTER();
    return add(state, data, bytes);
}

CUAPI(cuLinkAddData, (CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned count,
                      int *options, void **values)) {
    (void)type, (void)name, (void)count, (void)options, (void)values;
    ENTER();
    return add(state, data, bytes);
}

CUAPI(cuLinkAddFile_v2, (CUlinkState state, int type, const char *path, unsigned count, int *options, void **values)) {
    (void)type, (void)count, (void)options, (void)values;
    ENTER();
    return add_file(state, path);
}

CUAPI(cuLinkAddFile, (CUlinkState state, int type, const char *path, unsigned count, int *options, void **values)) {
    (void)type, (void)count, (void)options, (void)values;
    ENTER();
    return add_file(state, path);
}

CUAPI(cuLinkComplete, (CUlinkState state, void **image, size_t *bytes)) {
    ENTER();
    if (!state || state->magic != LINK_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    if (state->result->images == 0) return CUDA_ERROR_INVALID_IMAGE;
    if (image) *image = state->result;
    if (bytes) *bytes = state->result->bytes;
    return CUDA_SUCCESS;
}

CUAPI(cuLinkDestroy, (CUlinkState state)) {
    ENTER();
    if (!state || state->magic != LINK_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    free(state->result);
    state->magic = 0;
    free(state);
    return CUDA_SUCCESS;
}
