/* Adding nodes to graphs. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

/* Adds a node and copies its parameters into it. */
static CUresult add(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, const CUgraphNode *before, size_t count,
                    const void *parameters, size_t bytes) {
    if (!node || (bytes && !parameters)) return CUDA_ERROR_INVALID_VALUE;
    TRY(node_add(node, graph, type, before, count));
    if (bytes) memcpy(&(*node)->kernel, parameters, bytes);
    (*node)->effective = bytes != 0;
    return CUDA_SUCCESS;
}

_Static_assert(offsetof(struct CUgraphNode_st, kernel) == offsetof(struct CUgraphNode_st, allocation) &&
                   offsetof(struct CUgraphNode_st, kernel) == offsetof(struct CUgraphNode_st, event),
               "all parameters begin at one place");

#define KERNEL_V1_BYTES offsetof(CUDA_KERNEL_NODE_PARAMS, kern)

static CUresult kernel_check(const CUDA_KERNEL_NODE_PARAMS *parameters, bool newer) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    CUfunction function = parameters->func;
    if (!function && newer) function = (CUfunction)(void *)parameters->kern;
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUAPI(cuGraphAddKernelNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count,
                             const CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    TRY(kernel_check(parameters, false));
    return add(node, graph, CU_GRAPH_NODE_TYPE_KERNEL, before, count, parameters, KERNEL_V1_BYTES);
}

CUAPI(cuGraphAddKernelNode_v2, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count,
                                const CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    TRY(kernel_check(parameters, true));
    return add(node, graph, CU_GRAPH_NODE_TYPE_KERNEL, before, count, parameters, sizeof *parameters);
}

CUAPI(cuGraphAddMemcpyNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count,
                             const CUDA_MEMCPY3D *copy, CUcontext context)) {
    (void)context;
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_MEMCPY, before, count, copy, sizeof *copy);
}

CUAPI(cuGraphAddMemsetNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count,
                             const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context)) {
    (void)context;
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_MEMSET, before, count, set, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
}

CUAPI(cuGraphAddHostNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, const CUDA_HOST_NODE_PARAMS *host)) {
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_HOST, before, count, host, sizeof *host);
}

CUAPI(cuGraphAddEmptyNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count)) {
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_EMPTY, before, count, NULL, 0);
}

CUAPI(cuGraphAddEventRecordNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUevent event)) {
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_EVENT_RECORD, before, count, &event, sizeof event);
}

CUAPI(cuGraphAddEventWaitNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUevent event)) {
    ENTER();
    return add(node, graph, CU_GRAPH_NODE_TYPE_WAIT_EVENT, before, count, &event, sizeof event);
}

static CUresult add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child) {
    if (!node || !graph_valid(child)) return CUDA_ERROR_INVALID_VALUE;
    if (child->remembers) return CUDA_ERROR_NOT_SUPPORTED;
    driver_lock();
    CUgraph copy = graph_copy(child);
    driver_unlock();
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    copy->child = true;
    return add(node, graph, CU_GRAPH_NODE_TYPE_GRAPH, before, count, &copy, sizeof copy);
}

CUAPI(cuGraphAddChildGraphNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child)) {
    ENTER();
    return add_child(node, graph, before, count, child);
}

CUAPI(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *graph)) {
    ENTER();
    if (!node_valid(node) || !graph || node->type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

CUresult graph_add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                              CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    if (!node || !parameters || parameters->bytesize == 0 ||
        parameters->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (parameters->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(parameters->poolProps.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (parameters->bytesize > UINT64_C(1) << 42) return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(node_add(node, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, before, count));
    driver_lock();
    (*node)->memory = graph_memory_new_locked(parameters->poolProps.location.id, parameters->bytesize);
    driver_unlock();
    if (!(*node)->memory) return CUDA_ERROR_OUT_OF_MEMORY;
    parameters->dptr = (*node)->memory->base;
    (*node)->allocation = *parameters;
    graph->remembers = true;
    return CUDA_SUCCESS;
}

CUresult graph_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                        CUdeviceptr pointer) {
    driver_lock();
    const struct memory *memory = memory_find(pointer);
    bool known = memory && memory->kind == MEMORY_GRAPH && memory->base == pointer;
    driver_unlock();
    if (!node || !known) return CUDA_ERROR_INVALID_VALUE;
    TRY(node_add(node, graph, CU_GRAPH_NODE_TYPE_MEM_FREE, before, count));
    (*node)->freed = pointer;
    graph->remembers = true;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphAddMemAllocNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count,
                               CUDA_MEM_ALLOC_NODE_PARAMS *parameters)) {
    ENTER();
    return graph_add_allocation(node, graph, before, count, parameters);
}

CUAPI(cuGraphAddMemFreeNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr pointer)) {
    ENTER();
    return graph_add_free(node, graph, before, count, pointer);
}

CUAPI(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)) {
    ENTER();
    if (!node_valid(node) || !parameters || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_INVALID_VALUE;
    *parameters = node->allocation;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr *pointer)) {
    ENTER();
    if (!node_valid(node) || !pointer || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->freed;
    return CUDA_SUCCESS;
}

/* ---- any kind ---- */

static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                        CUgraphNodeParams *parameters) {
    if (!node || !parameters) return CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        TRY(kernel_check(&parameters->kernel, true));
        return add(node, graph, parameters->type, before, count, &parameters->kernel, sizeof parameters->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return add(node, graph, parameters->type, before, count, &parameters->memcpy.copyParams, sizeof(CUDA_MEMCPY3D));
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return add(node, graph, parameters->type, before, count, &parameters->memset, sizeof parameters->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        return add(node, graph, parameters->type, before, count, &parameters->host, sizeof parameters->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return add_child(node, graph, before, count, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return add(node, graph, parameters->type, before, count, NULL, 0);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return graph_add_allocation(node, graph, before, count, &parameters->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_add_free(node, graph, before, count, parameters->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUAPI(cuGraphAddNode,
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *parameters)) {
    ENTER();
    return add_any(node, graph, before, count, parameters);
}

CUAPI(cuGraphAddNode_v2, (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                          size_t count, CUgraphNodeParams *parameters)) {
    (void)data;
    ENTER();
    return add_any(node, graph, before, count, parameters);
}

/* ---- parameters of nodes that are there ---- */

#define PARAMETERS(name, node_type, field, parameter_type, bytes)                                                      \
    CUAPI(cuGraph##name##NodeGetParams, (CUgraphNode node, parameter_type * parameters)) {                             \
        ENTER();                                                                                                       \
        if (!node_valid(node) || !parameters || node->type != node_type) return CUDA_ERROR_INVALID_VALUE;              \
        memcpy(parameters, &node->field, bytes);                                                                       \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    CUAPI(cuGraph##name##NodeSetParams, (CUgraphNode node, const parameter_type *parameters)) {                        \
        ENTER();                                                                                                       \
        if (!node_valid(node) || !parameters || node->type != node_type) return CUDA_ERROR_INVALID_VALUE;              \
        memcpy(&node->field, parameters, bytes);                                                                       \
        node->effective = true;                                                                                        \
        return CUDA_SUCCESS;                                                                                           \
    }

PARAMETERS(Kernel, CU_GRAPH_NODE_TYPE_KERNEL, kernel, CUDA_KERNEL_NODE_PARAMS, KERNEL_V1_BYTES)
PARAMETERS(Memcpy, CU_GRAPH_NODE_TYPE_MEMCPY, copy, CUDA_MEMCPY3D, sizeof(CUDA_MEMCPY3D))
PARAMETERS(Memset, CU_GRAPH_NODE_TYPE_MEMSET, set, CUDA_MEMSET_NODE_PARAMS, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx))
PARAMETERS(Host, CU_GRAPH_NODE_TYPE_HOST, host, CUDA_HOST_NODE_PARAMS, sizeof(CUDA_HOST_NODE_PARAMS))

CUAPI(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    if (!node_valid(node) || !parameters || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    *parameters = node->kernel;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    if (!node_valid(node) || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    TRY(kernel_check(parameters, true));
    node->kernel = *parameters;
    return CUDA_SUCCESS;
}
