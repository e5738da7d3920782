#include "body.h"
#include "launch.h"

#define FIRST_ROOM_BYTES 1024 /* for each thread, by the driver's default for CU_LIMIT_STACK_SIZE */

void vgpu_launch_learn(struct vgpu_process *process, const void *handle, uint64_t local_bytes) {
    struct vgpu_entry entry = {.key = (uint64_t)(uintptr_t)handle, .bytes = local_bytes};
    if (!handle) return;
    if (local_bytes > FIRST_ROOM_BYTES)
        vgpu_table_put(&process->tables[VGPU_KERNELS_DEEP], &entry);
    else if (vgpu_launch_any(process)) /* the handle may have been another one's, which was unloaded */
        vgpu_table_take(&process->tables[VGPU_KERNELS_DEEP], entry.key, &entry);
}

void vgpu_launch_learn_function(struct vgpu_process *process, CUfunction function) {
    int bytes = 0;
    if (real_cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) == CUDA_SUCCESS)
        vgpu_launch_learn(process, function, (uint64_t)bytes);
}

/* It belongs to no context and may be launched on any device. */
void vgpu_launch_learn_kernel(struct vgpu_process *process, CUkernel kernel) {
    int most = 0, bytes;
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
        if (real_cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, ordinal) == CUDA_SUCCESS &&
            bytes > most)
            most = bytes;
    vgpu_launch_learn(process, kernel, (uint64_t)most);
}

uint64_t vgpu_launch_local_bytes(struct vgpu_process *process, const void *handle) {
    struct vgpu_entry entry;
    return vgpu_table_find(&process->tables[VGPU_KERNELS_DEEP], (uint64_t)(uintptr_t)handle, &entry) ? entry.bytes : 0;
}

/* ---- the room that a context has ---- */

static uint64_t *room_of(struct vgpu_process *process, const struct vgpu_place *place) {
    return place->context ? &process->contexts[place->context - 1].local_bytes : NULL;
}

static uint64_t room_bytes(struct vgpu_process *process, const struct vgpu_place *place) {
    const uint64_t *room = room_of(process, place);
    uint64_t has = room ? __atomic_load_n(room, __ATOMIC_RELAXED) : 0;
    return has > FIRST_ROOM_BYTES ? has : FIRST_ROOM_BYTES;
}

static bool has_room(struct vgpu_process *process, const struct vgpu_place *place, uint64_t local_bytes) {
    return local_bytes <= room_bytes(process, place);
}

static void note_room(struct vgpu_process *process, const struct vgpu_place *place, uint64_t local_bytes) {
    uint64_t *room = room_of(process, place);
    if (room && local_bytes > *room) __atomic_store_n(room, local_bytes, __ATOMIC_RELAXED);
}

void vgpu_launch_limit_set(struct vgpu_process *process, const struct vgpu_place *place, uint64_t local_bytes,
                           bool shrunk) {
    uint64_t *room = room_of(process, place);
    if (shrunk && room) __atomic_store_n(room, 0, __ATOMIC_RELAXED);
    note_room(process, place, local_bytes);
}

/* What the card has to give so that each thread has `local_bytes`. */
static uint64_t growth_bytes(struct vgpu_process *process, const struct vgpu_place *place, uint64_t local_bytes) {
    uint64_t has = room_bytes(process, place);
    int ordinal = vgpu_device_ordinal(process, place->device), multiprocessors = 0, threads = 0;
    if (local_bytes <= has) return 0; /* another thread has made room meanwhile */
    real_cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
    real_cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal);
    return vgpu_whole_blocks((local_bytes - has) * (uint64_t)multiprocessors * (uint64_t)threads);
}

CUresult vgpu_launch_begin(struct vgpu_growth *growth, const void *handle, CUstream stream) {
    struct vgpu_process *process = vgpu_enter();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    growth->process = NULL;
    growth->local_bytes = vgpu_launch_local_bytes(process, handle);
    if (growth->local_bytes == 0 || process->state != VGPU_READY ||
        !vgpu_place_of_stream(process, stream, &growth->place) ||
        has_room(process, &growth->place, growth->local_bytes))
        return CUDA_SUCCESS;
    real_cuStreamIsCapturing(stream, &status);
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS; /* looked at when the graph becomes executable */
    vgpu_private_lock(&process->birth_lock);
    growth->reserved_bytes = growth_bytes(process, &growth->place, growth->local_bytes);
    CUresult result = vgpu_charge(process, growth->place.device, VGPU_KIND_CONTEXT, growth->reserved_bytes);
    if (result != CUDA_SUCCESS) {
        vgpu_private_unlock(&process->birth_lock);
        return result;
    }
    vgpu_measure_start(process, growth->place.device, &growth->before);
    growth->process = process;
    return CUDA_SUCCESS;
}

/* The room is there, whether it fits or not. What came beyond it is code that the launch has loaded. */
void vgpu_launch_end(const struct vgpu_growth *growth, CUresult result) {
    struct vgpu_process *process = growth->process;
    if (!process) return;
    int device = growth->place.device;
    int64_t otherwise = result == CUDA_SUCCESS ? (int64_t)growth->reserved_bytes : 0;
    int64_t change = vgpu_measure_change(process, &growth->before, (uint64_t)otherwise);
    uint64_t grown = change > 0 ? (uint64_t)change : 0, room = growth->reserved_bytes;
    if (grown < room) room = grown;
    vgpu_uncharge(process, device, VGPU_KIND_CONTEXT, growth->reserved_bytes - room);
    vgpu_charge_anyway(process, device, VGPU_KIND_MODULE, grown - room);
    process->module_bytes[device] += grown - room;
    vgpu_context_grew(process, growth->place.context, room);
    if (result == CUDA_SUCCESS) note_room(process, &growth->place, growth->local_bytes);
    vgpu_private_unlock(&process->birth_lock);
}

CUresult vgpu_launch_expect(struct vgpu_process *process, uint64_t local_bytes) {
    struct vgpu_place place;
    if (!vgpu_place_current(process, &place) || has_room(process, &place, local_bytes)) return CUDA_SUCCESS;
    process->charged_ahead = true;
    uint64_t bytes = growth_bytes(process, &place, local_bytes);
    CUresult result = vgpu_charge(process, place.device, VGPU_KIND_CONTEXT, bytes);
    if (result != CUDA_SUCCESS) return result;
    vgpu_context_grew(process, place.context, bytes);
    note_room(process, &place, local_bytes);
    return CUDA_SUCCESS;
}

/* ---- the launches ---- */

/* Launches are counted for the monitor, which dates the changes: a lost count among threads is no harm, an atomic
 * addition on every launch would be. */
static inline struct vgpu_process *count_launch(void) {
    struct vgpu_process *process = vgpu_enter_quietly();
    if (__builtin_expect(!process, 0)) return NULL;
    const struct vgpu_member *member = process->member;
    int device = process->index_of[0];
    if (__builtin_expect(process->cuda_devices != 1, 0)) {
        struct vgpu_place place;
        if (!vgpu_place_current(process, &place)) return NULL;
        device = place.device;
    }
    if (__builtin_expect((unsigned)device >= VGPU_MAX_DEVICES, 0)) return NULL;
    uint64_t *launches = &member->region->slots[member->slot].launches[device];
    __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    return process;
}

#define LAUNCH(symbol, parameters, arguments, function, stream)                                                        \
    CUresult symbol parameters {                                                                                       \
        const struct vgpu_process *process = count_launch();                                                           \
        if (__builtin_expect(!process, 0) || !vgpu_launch_any(process)) return real_##symbol arguments;                \
        struct vgpu_growth growth;                                                                                     \
        CUresult result = vgpu_launch_begin(&growth, function, stream);                                                \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        result = real_##symbol arguments;                                                                              \
        vgpu_launch_end(&growth, result);                                                                              \
        return result;                                                                                                 \
    }

#define GRID                                                                                                           \
    unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,                       \
        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes
#define GRID_ARGUMENTS gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes
#define OWN_STREAM     (hStream ? hStream : CU_STREAM_PER_THREAD)

LAUNCH(cuLaunch, (CUfunction f), (f), f, NULL)
LAUNCH(cuLaunchGrid, (CUfunction f, int grid_width, int grid_height), (f, grid_width, grid_height), f, NULL)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int grid_width, int grid_height, CUstream hStream),
       (f, grid_width, grid_height, hStream), f, hStream)
LAUNCH(cuLaunchKernel, (CUfunction f, GRID, CUstream hStream, void **kernelParams, void **extra),
       (f, GRID_ARGUMENTS, hStream, kernelParams, extra), f, hStream)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, GRID, CUstream hStream, void **kernelParams, void **extra),
       (f, GRID_ARGUMENTS, hStream, kernelParams, extra), f, OWN_STREAM)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, GRID, CUstream hStream, void **kernelParams),
       (f, GRID_ARGUMENTS, hStream, kernelParams), f, hStream)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, GRID, CUstream hStream, void **kernelParams),
       (f, GRID_ARGUMENTS, hStream, kernelParams), f, OWN_STREAM)

/* Of several devices at once, as no driver since CUDA 13 does: what they take is found by vgpu_measure_reconcile(). */
LAUNCH(cuLaunchCooperativeKernelMultiDevice,
       (CUDA_LAUNCH_PARAMS * launchParamsList, unsigned int numDevices, unsigned int flags),
       (launchParamsList, numDevices, flags), NULL, NULL)

/* The driver gets the copy that was looked at. */
#define LAUNCH_EX(symbol, stream_of)                                                                                   \
    CUresult symbol(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {                   \
        const struct vgpu_process *process = count_launch();                                                           \
        if (__builtin_expect(!process, 0) || !vgpu_launch_any(process) || !config)                                     \
            return real_##symbol(config, f, kernelParams, extra);                                                      \
        CUlaunchConfig asked = *config;                                                                                \
        CUstream hStream = asked.hStream;                                                                              \
        struct vgpu_growth growth;                                                                                     \
        CUresult result = vgpu_launch_begin(&growth, f, stream_of);                                                    \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        result = real_##symbol(&asked, f, kernelParams, extra);                                                        \
        vgpu_launch_end(&growth, result);                                                                              \
        return result;                                                                                                 \
    }

LAUNCH_EX(cuLaunchKernelEx, hStream)
LAUNCH_EX(cuLaunchKernelEx_ptsz, OWN_STREAM)
