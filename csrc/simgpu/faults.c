/* Calls that shall fail, counted over all processes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

int sim_fault_add(struct sim_view *view, const char *call, uint32_t first, uint32_t last, int32_t code) {
    struct sim_state *state = view->state;
    size_t length = strlen(call);
    if (length >= sizeof state->fault[0].call) return -ENAMETOOLONG;
    sim_lock(view);
    uint32_t index = state->faults;
    if (index < SIM_MAX_FAULTS) {
        struct sim_fault *fault = &state->fault[index];
        *fault = (struct sim_fault){.first = first, .last = last, .code = code};
        memcpy(fault->call, call, length + 1);
        __atomic_store_n(&state->faults, index + 1, __ATOMIC_RELEASE);
    }
    sim_unlock(view);
    return index < SIM_MAX_FAULTS ? 0 : -ENOSPC;
}

void sim_fault_clear(struct sim_view *view) {
    sim_lock(view);
    __atomic_store_n(&view->state->faults, 0, __ATOMIC_RELEASE);
    sim_unlock(view);
}

int32_t sim_fault_take(struct sim_view *view, const char *call) {
    uint32_t count = __atomic_load_n(&view->state->faults, __ATOMIC_ACQUIRE);
    int32_t code = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_fault *fault = &view->state->fault[i];
        if (strcmp(fault->call, call) != 0) continue;
        uint32_t nth = __atomic_add_fetch(&fault->calls, 1, __ATOMIC_RELAXED);
        if (code == 0 && nth >= fault->first && nth <= fault->last) code = fault->code;
    }
    return code;
}

bool sim_symbol_missing(const char *name) {
    char path[PATH_MAX];
    bool missing = false;
    sim_default_path(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const size_t bytes = offsetof(struct sim_state, object);
    const struct sim_state *state = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    struct stat status;
    if (state != MAP_FAILED && fstat(fd, &status) == 0 && (size_t)status.st_size == sizeof *state &&
        state->magic == SIM_MAGIC && state->layout == SIM_LAYOUT)
        for (uint32_t i = 0; i < state->faults && i < SIM_MAX_FAULTS; i++)
            missing |= state->fault[i].code == SIM_FAULT_MISSING && strcmp(state->fault[i].call, name) == 0;
    if (state != MAP_FAILED) munmap((void *)(uintptr_t)state, bytes);
    close(fd);
    return missing;
}
