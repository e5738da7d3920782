/* Memory of another process: cuIpc… and the tickets behind it.
 *
 * The memory becomes an object of the shared state and lives until its last user is gone. Its data moves into a memfd
 * that the exporter keeps open; an importer that can reach the exporter's /proc/<pid>/fd sees the same bytes, one in
 * another pid namespace sees zeroes. */
#include "ipc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x49504369u

_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a ticket fits into a handle");

static struct sim_slot *own_slot(void) {
    return &driver.view.state->slot[driver.view.slot];
}

/* Moves the data that was written so far into a file that others can map. */
static int move_data(CUdeviceptr base, uint64_t bytes, int64_t object, bool touched) {
    int fd = share_make(&(struct share){.kind = SHARE_PHYSICAL, .object = object, .bytes = bytes}, bytes);
    if (fd < 0) return -1;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, SHARE_DATA);
    if (copy == MAP_FAILED) {
        close(fd);
        return -1;
    }
    if (touched) memcpy(copy, (void *)(uintptr_t)base, bytes < KEPT_BYTES ? bytes : KEPT_BYTES);
    munmap(copy, bytes);
    if (mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, SHARE_DATA) ==
        MAP_FAILED)
        arena_replace(base, bytes);
    return fd;
}

CUresult ticket_write_locked(struct ticket *ticket, struct memory *memory, CUdeviceptr address) {
    struct memory *whole = memory->home ? arena_find(memory->base) : memory;
    uint64_t bytes = (uint64_t)whole->blocks << BLOCK_SHIFT;
    unsigned card = driver.device[whole->device].card;
    if (whole->object < 0) {
        int64_t object = sim_object_create(&driver.view, card, bytes);
        if (object < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        whole->object = object;
        whole->fd = move_data(whole->base, bytes, object, whole->touched);
        whole->shown = true;
    }
    *ticket = (struct ticket){.magic = MAGIC,
                              .fd = whole->fd,
                              .object = whole->object,
                              .offset = address - whole->base,
                              .bytes = memory->size,
                              .whole_bytes = bytes,
                              .pid = own_slot()->pid,
                              .slot = driver.view.slot,
                              .generation = own_slot()->generation,
                              .card = card};
    return CUDA_SUCCESS;
}

static void find_object(struct memory *memory, void *argument) {
    struct memory **wanted = argument;
    if (memory->kind == MEMORY_IMPORTED && memory->object == (*wanted)->object && memory != *wanted) *wanted = memory;
}

/* The exporter's data, if this process may look at it. */
static int reach(const struct ticket *ticket) {
    char path[64];
    struct share share;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    int fd = ticket->fd >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && share_read(fd, SHARE_PHYSICAL, &share) && share.object == ticket->object) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

CUresult ticket_open_locked(CUdeviceptr *pointer, const struct ticket *ticket, CUmemoryPool pool) {
    if (ticket->magic != MAGIC || ticket->card >= driver.view.state->cards) return CUDA_ERROR_INVALID_VALUE;
    if (ticket->slot == driver.view.slot && ticket->generation == own_slot()->generation)
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that made it */
    int device = device_of_card(ticket->card);
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    struct memory wanted = {.object = ticket->object}, *known = &wanted;
    memory_each(find_object, &known);
    if (known != &wanted) {
        known->imports++;
        *pointer = known->base + ticket->offset;
        return CUDA_SUCCESS;
    }
    struct memory *memory = memory_new(MEMORY_IMPORTED, device, current_context);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->size = ticket->whole_bytes;
    memory->blocks = (uint32_t)(ticket->whole_bytes >> BLOCK_SHIFT);
    if (sim_object_use(&driver.view, ticket->object) < 0 || !(memory->base = arena_take(memory->blocks, 1, false))) {
        memory_recycle(memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    memory->object = ticket->object;
    memory->pool = pool;
    memory->imports = 1;
    int fd = reach(ticket);
    if (fd >= 0) {
        memory->shown = mmap((void *)(uintptr_t)memory->base, memory->size, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_FIXED, fd, SHARE_DATA) != MAP_FAILED;
        close(fd);
    }
    arena_set(memory->base, memory);
    sim_count_request(&driver.view, ticket->card, 1);
    *pointer = memory->base + ticket->offset;
    return CUDA_SUCCESS;
}

void import_give_locked(struct memory *memory) {
    memory_forget(memory);
    arena_clear(memory->base);
    arena_give(memory->base, memory->blocks);
    if (memory->object >= 0) sim_object_drop(&driver.view, memory->object);
    sim_count_request(&driver.view, driver.device[memory->device].card, -1);
    memory_recycle(memory);
}

bool ticket_close_locked(CUdeviceptr pointer, bool pooled) {
    struct memory *memory = memory_find(pointer);
    if (!memory || memory->kind != MEMORY_IMPORTED || memory->object < 0 || !memory->imports ||
        (memory->pool != NULL) != pooled)
        return false;
    if (--memory->imports == 0) import_give_locked(memory);
    return true;
}

CUAPI(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer)) {
    ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    struct ticket ticket;
    driver_lock();
    struct memory *memory = memory_find(pointer);
    CUresult result = memory && memory->kind == MEMORY_LINEAR ? ticket_write_locked(&ticket, memory, memory->base)
                                                              : CUDA_ERROR_INVALID_VALUE;
    driver_unlock();
    if (result == CUDA_SUCCESS) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &ticket, sizeof ticket);
    }
    return result;
}

static CUresult open_handle(CUdeviceptr *pointer, const CUipcMemHandle *handle, unsigned flags) {
    if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    struct ticket ticket;
    memcpy(&ticket, handle, sizeof ticket);
    driver_lock();
    CUresult result = ticket_open_locked(pointer, &ticket, NULL);
    driver_unlock();
    return result;
}

CUAPI(cuIpcOpenMemHandle_v2, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned flags)) {
    ENTER_CONTEXT();
    return open_handle(pointer, &handle, flags);
}

CUAPI(cuIpcOpenMemHandle, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned flags)) {
    ENTER_CONTEXT();
    return open_handle(pointer, &handle, flags);
}

CUAPI(cuIpcCloseMemHandle, (CUdeviceptr pointer)) {
    ENTER_CONTEXT();
    driver_lock();
    bool closed = ticket_close_locked(pointer, false);
    driver_unlock();
    return closed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- events: only that they can be handed over; nothing waits here ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags);

CUAPI(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event)) {
    ENTER_CONTEXT();
    if (!handle || !event) return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &(uint32_t){MAGIC}, sizeof(uint32_t));
    return CUDA_SUCCESS;
}

CUAPI(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle)) {
    ENTER_CONTEXT();
    uint32_t magic;
    memcpy(&magic, &handle, sizeof magic);
    if (!event || magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
    return cuEventCreate(event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
}
