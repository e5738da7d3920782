/* Graphs with allocation nodes. The driver keeps a reserve of memory for each device's graphs; it grows when a graph is
 * launched or uploaded, is used by all of them in turn, and shrinks when it is trimmed. The driver tells its size
 * (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), so the charge follows that. What a launch may need is known from the nodes
 * of the graph, which are looked through when it becomes executable: captured, cloned and child graphs come by there
 * like those made by hand. */
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "launch.h"
#include "pool.h"

#define NODES     256
#define MOST_DEEP 16

/* `otherwise` where the driver can't answer now, as after a kernel's fault. */
static uint64_t attribute(int ordinal, CUgraphMem_attribute which, uint64_t otherwise) {
    uint64_t value = 0;
    return real_cuDeviceGetGraphMemAttribute(ordinal, which, &value) == CUDA_SUCCESS ? value : otherwise;
}

/* With pool_lock. */
static void settle(struct vgpu_process *process, int ordinal) {
    int device = process->index_of[ordinal];
    uint64_t *charged = &process->graph_bytes[device];
    uint64_t reserved = vgpu_whole_blocks(attribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, *charged));
    if (reserved < *charged)
        vgpu_uncharge(process, device, VGPU_KIND_BUFFER, *charged - reserved);
    else
        vgpu_charge_anyway(process, device, VGPU_KIND_BUFFER, reserved - *charged);
    *charged = reserved;
}

void vgpu_graphs_settle(struct vgpu_process *process) {
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
        if (process->graph_bytes[process->index_of[ordinal]]) settle(process, ordinal);
}

/* What the graph's nodes need. */
struct needs {
    uint64_t bytes[VGPU_MAX_DEVICES]; /* its allocation nodes together, by ordinal */
    uint64_t local_bytes;             /* each thread of the kernel that needs most local memory, if that is much */
};

/* Of a kernel node with these parameters. */
static uint64_t local_bytes_of(struct vgpu_process *process, CUfunction function, CUkernel kernel) {
    uint64_t one = vgpu_launch_local_bytes(process, function), other = vgpu_launch_local_bytes(process, kernel);
    return one > other ? one : other;
}

static uint64_t local_bytes_at(struct vgpu_process *process, CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS parameters = {.func = NULL};
    if (real_cuGraphKernelNodeGetParams_v2(node, &parameters) != CUDA_SUCCESS) return 0;
    return local_bytes_of(process, parameters.func, parameters.kern);
}

static void add_up(struct vgpu_process *process, CUgraph graph, struct needs *needs, int depth) {
    CUgraphNode few[NODES], *nodes = few;
    size_t count = 0;
    if (real_cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0) return;
    if (count > NODES && !(nodes = malloc(count * sizeof *nodes))) return;
    if (real_cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CUDA_MEM_ALLOC_NODE_PARAMS parameters;
        CUgraph child;
        if (real_cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < MOST_DEEP &&
            real_cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            add_up(process, child, needs, depth + 1);
        if (type == CU_GRAPH_NODE_TYPE_KERNEL && vgpu_launch_any(process)) {
            uint64_t local_bytes = local_bytes_at(process, nodes[i]);
            if (local_bytes > needs->local_bytes) needs->local_bytes = local_bytes;
        }
        if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            real_cuGraphMemAllocNodeGetParams(nodes[i], &parameters) != CUDA_SUCCESS)
            continue;
        int ordinal = parameters.poolProps.location.id;
        if (parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE && ordinal >= 0 &&
            ordinal < process->cuda_devices)
            needs->bytes[ordinal] += vgpu_whole_blocks(parameters.bytesize);
    }
    if (nodes != few) free(nodes);
}

/* With what its kernels need beyond what was known of them, the executable graph is one more thing that can be
 * launched. CUDA_ERROR_OUT_OF_MEMORY if it could never be. */
static CUresult expect(struct vgpu_process *process, CUgraphExec executable, uint64_t local_bytes) {
    if (local_bytes <= vgpu_launch_local_bytes(process, executable)) return CUDA_SUCCESS;
    CUresult result = vgpu_launch_expect(process, local_bytes);
    if (result == CUDA_SUCCESS) vgpu_launch_learn(process, executable, local_bytes);
    return result;
}

/* One entry for each device: a handle is aligned, so the ordinal fits into it. */
static uint64_t key_of(CUgraphExec graph, int ordinal) {
    return (uint64_t)(uintptr_t)graph + (uint64_t)ordinal;
}

static CUresult remember(struct vgpu_process *process, CUgraphExec executable, const struct needs *needs) {
    struct vgpu_entry old;
    vgpu_launch_learn(process, executable, 0); /* what was known of another one with this handle, or in it before */
    CUresult result = expect(process, executable, needs->local_bytes);
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++) {
        struct vgpu_entry entry = {.key = key_of(executable, ordinal), .bytes = needs->bytes[ordinal]};
        if (entry.bytes && result == CUDA_SUCCESS)
            vgpu_table_put(&process->tables[VGPU_GRAPHS], &entry);
        else
            vgpu_table_take(&process->tables[VGPU_GRAPHS], entry.key, &old);
    }
    return result;
}

#define INSTANTIATE(out, graph, instantiate, ...)                                                                      \
    do {                                                                                                               \
        VGPU_BEGIN(process, instantiate(out, graph, __VA_ARGS__));                                                     \
        CUgraphExec executable = NULL;                                                                                 \
        if (!(out)) return instantiate(out, graph, __VA_ARGS__);                                                       \
        CUresult result = instantiate(&executable, graph, __VA_ARGS__);                                                \
        if (result != CUDA_SUCCESS) return result;                                                                     \
        struct needs needs = {.local_bytes = 0};                                                                       \
        add_up(process, graph, &needs, 0);                                                                             \
        result = remember(process, executable, &needs);                                                                \
        if (result == CUDA_SUCCESS)                                                                                    \
            *(out) = executable;                                                                                       \
        else                                                                                                           \
            real_cuGraphExecDestroy(executable);                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                            size_t bufferSize) {
    INSTANTIATE(phGraphExec, hGraph, real_cuGraphInstantiate, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize) {
    INSTANTIATE(phGraphExec, hGraph, real_cuGraphInstantiate_v2, phErrorNode, logBuffer, bufferSize);
}

/* ---- running ---- */

/* Grows the charge by what the graph may need beyond the reserve that is there, lets the driver work, and settles. */
static CUresult run(struct vgpu_process *process, const uint64_t *bytes, CUresult (*call)(void *data), void *data) {
    uint64_t reserved[VGPU_MAX_DEVICES] = {0};
    CUresult result = CUDA_SUCCESS;
    int ordinal = 0;
    process->charged_ahead = true;
    vgpu_private_lock(&process->pool_lock);
    for (; ordinal < process->cuda_devices; ordinal++) {
        if (!bytes[ordinal]) continue;
        uint64_t held = attribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 0);
        uint64_t used = attribute(ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0);
        uint64_t room = held > used ? held - used : 0;
        reserved[ordinal] = bytes[ordinal] > room ? vgpu_whole_blocks(bytes[ordinal] - room) : 0;
        result = vgpu_charge(process, process->index_of[ordinal], VGPU_KIND_BUFFER, reserved[ordinal]);
        if (result != CUDA_SUCCESS) break;
    }
    if (result == CUDA_SUCCESS) result = call(data);
    for (int i = 0; i < ordinal; i++) {
        if (!bytes[i]) continue;
        process->graph_bytes[process->index_of[i]] += reserved[i];
        settle(process, i);
    }
    vgpu_private_unlock(&process->pool_lock);
    return result;
}

static bool find(struct vgpu_process *process, CUgraphExec graph, uint64_t *bytes) {
    struct vgpu_entry entry;
    bool found = false;
    if (__builtin_expect(__atomic_load_n(&process->tables[VGPU_GRAPHS].count, __ATOMIC_RELAXED) == 0, 1)) return false;
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++) {
        bytes[ordinal] = 0;
        if (graph && vgpu_table_find(&process->tables[VGPU_GRAPHS], key_of(graph, ordinal), &entry)) {
            bytes[ordinal] = entry.bytes;
            found = true;
        }
    }
    return found;
}

struct launch {
    CUresult (*real)(CUgraphExec graph, CUstream stream);
    CUgraphExec graph;
    CUstream stream;
};

static CUresult launch(void *data) {
    const struct launch *what = data;
    return what->real(what->graph, what->stream);
}

static CUresult launch_gated(struct vgpu_process *process, CUgraphExec graph, CUstream stream,
                             CUresult (*real)(CUgraphExec, CUstream)) {
    uint64_t bytes[VGPU_MAX_DEVICES];
    struct launch what = {real, graph, stream};
    VGPU_GATED(process);
    return find(process, graph, bytes) ? run(process, bytes, launch, &what) : real(graph, stream);
}

/* The room that was charged when it was made executable may have been given back since; another context has its own. */
static CUresult launch_graph(CUgraphExec graph, CUstream stream, CUresult (*real)(CUgraphExec, CUstream)) {
    VGPU_BEGIN_UNGATED(process, real(graph, stream));
    struct vgpu_growth growth = {.process = NULL};
    CUresult result = vgpu_launch_any(process) ? vgpu_launch_begin(&growth, graph, stream) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    result = launch_gated(process, graph, stream, real);
    vgpu_launch_end(&growth, result);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) {
    return launch_graph(hGraph, hStream, real_cuGraphLaunch);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
    return launch_graph(hGraphExec, hStream, real_cuGraphLaunch_ptsz);
}

CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream) {
    return launch_graph(hGraph, hStream, real_cuGraphUpload);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
    return launch_graph(hGraphExec, hStream, real_cuGraphUpload_ptsz);
}

/* ---- instantiating with flags may upload at once ---- */

struct instantiation {
    CUgraphExec executable; /* out */
    CUgraph graph;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *parameters;
    CUresult (*with_parameters)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
};

static CUresult instantiate(void *data) {
    struct instantiation *what = data;
    return what->parameters ? what->with_parameters(&what->executable, what->graph, what->parameters)
                            : real_cuGraphInstantiateWithFlags(&what->executable, what->graph, what->flags);
}

static CUresult instantiate_graph(struct vgpu_process *process, struct instantiation *what) {
    struct needs needs = {.local_bytes = 0};
    bool uploads = (what->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    if (uploads && what->graph) add_up(process, what->graph, &needs, 0);
    CUresult result = uploads ? run(process, needs.bytes, instantiate, what) : instantiate(what);
    if (result != CUDA_SUCCESS) return result;
    if (!uploads) add_up(process, what->graph, &needs, 0);
    result = remember(process, what->executable, &needs);
    if (result != CUDA_SUCCESS) real_cuGraphExecDestroy(what->executable);
    return result;
}

/* The flags that were looked at are those that the driver gets. */
static CUresult instantiate_with(struct vgpu_process *process, CUgraphExec *out, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                                 CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)) {
    CUDA_GRAPH_INSTANTIATE_PARAMS asked = *parameters;
    struct instantiation what = {.graph = graph, .flags = asked.flags, .parameters = &asked, .with_parameters = real};
    CUresult result = instantiate_graph(process, &what);
    if (result == CUDA_SUCCESS) *out = what.executable;
    *parameters = asked; /* the driver answers in it too */
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
    VGPU_BEGIN(process, real_cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags));
    if (!phGraphExec) return real_cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
    struct instantiation what = {.graph = hGraph, .flags = flags};
    CUresult result = instantiate_graph(process, &what);
    if (result == CUDA_SUCCESS) *phGraphExec = what.executable;
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    VGPU_BEGIN(process, real_cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams));
    if (!phGraphExec || !instantiateParams)
        return real_cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
    return instantiate_with(process, phGraphExec, hGraph, instantiateParams, real_cuGraphInstantiateWithParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    VGPU_BEGIN(process, real_cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams));
    if (!phGraphExec || !instantiateParams)
        return real_cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams);
    return instantiate_with(process, phGraphExec, hGraph, instantiateParams, real_cuGraphInstantiateWithParams_ptsz);
}

/* ---- changes and the end ---- */

/* What it will need then is looked for first: it can't be put back as it was. */
#define UPDATE(executable, graph, call)                                                                                \
    do {                                                                                                               \
        VGPU_BEGIN(process, call);                                                                                     \
        struct needs needs = {.local_bytes = 0};                                                                       \
        if (graph) add_up(process, graph, &needs, 0);                                                                  \
        CUresult result = expect(process, executable, needs.local_bytes);                                              \
        if (result == CUDA_SUCCESS) result = call;                                                                     \
        if (result == CUDA_SUCCESS) remember(process, executable, &needs);                                             \
        return result;                                                                                                 \
    } while (0)

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out, int *updateResult_out) {
    UPDATE(hGraphExec, hGraph, real_cuGraphExecUpdate(hGraphExec, hGraph, hErrorNode_out, updateResult_out));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo) {
    UPDATE(hGraphExec, hGraph, real_cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo));
}

/* One node of an executable graph gets other parameters: `local_bytes` is what it needs with them. */
#define ALTER(executable, local_bytes, call)                                                                           \
    do {                                                                                                               \
        CUresult result = expect(process, executable, local_bytes);                                                    \
        return result == CUDA_SUCCESS ? call : result;                                                                 \
    } while (0)

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    VGPU_BEGIN(process, real_cuGraphExecKernelNodeSetParams(hGraphExec, hNode, nodeParams));
    if (!nodeParams) return real_cuGraphExecKernelNodeSetParams(hGraphExec, hNode, nodeParams);
    CUDA_KERNEL_NODE_PARAMS_v1 asked = {.kern = NULL};
    memcpy(&asked, nodeParams, offsetof(CUDA_KERNEL_NODE_PARAMS_v1, kern));
    ALTER(hGraphExec, local_bytes_of(process, asked.func, NULL),
          real_cuGraphExecKernelNodeSetParams(hGraphExec, hNode, &asked));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    VGPU_BEGIN(process, real_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, nodeParams));
    if (!nodeParams) return real_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, nodeParams);
    CUDA_KERNEL_NODE_PARAMS asked = *nodeParams;
    ALTER(hGraphExec, local_bytes_of(process, asked.func, asked.kern),
          real_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &asked));
}

static uint64_t local_bytes_within(struct vgpu_process *process, CUgraph graph) {
    struct needs needs = {.local_bytes = 0};
    if (graph) add_up(process, graph, &needs, 1);
    return needs.local_bytes;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
    VGPU_BEGIN(process, real_cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph));
    ALTER(hGraphExec, local_bytes_within(process, childGraph),
          real_cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph));
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
    VGPU_BEGIN(process, real_cuGraphExecNodeSetParams(hGraphExec, hNode, nodeParams));
    if (!nodeParams) return real_cuGraphExecNodeSetParams(hGraphExec, hNode, nodeParams);
    CUgraphNodeParams asked = *nodeParams;
    uint64_t local_bytes = 0;
    if (asked.type == CU_GRAPH_NODE_TYPE_KERNEL)
        local_bytes = local_bytes_of(process, asked.kernel.func, asked.kernel.kern);
    if (asked.type == CU_GRAPH_NODE_TYPE_GRAPH) local_bytes = local_bytes_within(process, asked.graph.graph);
    ALTER(hGraphExec, local_bytes, real_cuGraphExecNodeSetParams(hGraphExec, hNode, &asked));
}

/* The entries go first: once the driver has destroyed it, another thread's graph can get the same handle. */
CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
    VGPU_BEGIN_RELEASE(process, real_cuGraphExecDestroy(hGraphExec));
    struct vgpu_entry entries[VGPU_MAX_DEVICES] = {{.key = 0}}; /* 0: there is none */
    for (int ordinal = 0; ordinal < process->cuda_devices; ordinal++)
        vgpu_table_take(&process->tables[VGPU_GRAPHS], key_of(hGraphExec, ordinal), &entries[ordinal]);
    uint64_t local_bytes = vgpu_launch_local_bytes(process, hGraphExec);
    vgpu_launch_learn(process, hGraphExec, 0);
    CUresult result = real_cuGraphExecDestroy(hGraphExec);
    for (int ordinal = 0; result != CUDA_SUCCESS && ordinal < process->cuda_devices; ordinal++)
        if (entries[ordinal].key) vgpu_table_put(&process->tables[VGPU_GRAPHS], &entries[ordinal]);
    if (result != CUDA_SUCCESS) vgpu_launch_learn(process, hGraphExec, local_bytes);
    vgpu_pools_settle(process);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    VGPU_BEGIN_RELEASE(process, real_cuDeviceGraphMemTrim(device));
    CUresult result = real_cuDeviceGraphMemTrim(device);
    vgpu_pools_settle(process);
    return result;
}
