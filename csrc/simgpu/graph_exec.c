/* Instances of graphs: made, launched, updated. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "graph.h"

static bool exec_valid(CUgraphExec exec) {
    return exec && exec->magic == EXEC_MAGIC;
}

static CUresult instantiate(CUgraphExec *result, CUgraph graph, unsigned long long flags) {
    if (!result || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
    if (graph->remembers && graph->instantiated) return CUDA_ERROR_NOT_SUPPORTED;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    *exec = (struct CUgraphExec_st){
        .magic = EXEC_MAGIC, .flags = flags, .id = next_id(), .graph = graph_copy(graph), .source = graph};
    graph->instantiated = true;
    driver_unlock();
    if (!exec->graph) {
        free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = exec;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) {
    ENTER();
    return instantiate(exec, graph, flags);
}

CUAPI(cuGraphInstantiate_v2,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)) {
    ENTER();
    if (error_node) *error_node = NULL;
    if (log && log_bytes) *log = '\0';
    return instantiate(exec, graph, 0);
}

CUAPI(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)) {
    ENTER();
    if (error_node) *error_node = NULL;
    if (log && log_bytes) *log = '\0';
    return instantiate(exec, graph, 0);
}

CUAPI(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)) {
    ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    parameters->hErrNode_out = NULL;
    parameters->result_out = 0;
    return instantiate(exec, graph, parameters->flags);
}

CUAPI(cuGraphExecDestroy, (CUgraphExec exec)) {
    ENTER();
    if (!exec_valid(exec)) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (graph_valid(exec->source)) exec->source->instantiated = false;
    graph_free_locked(exec->graph);
    driver_unlock();
    exec->magic = 0;
    free(exec);
    return CUDA_SUCCESS;
}

CUAPI(cuGraphExecGetFlags, (CUgraphExec exec, uint64_t *flags)) {
    ENTER();
    if (!exec_valid(exec) || !flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphExecGetId, (CUgraphExec exec, unsigned *id)) {
    ENTER();
    if (!exec_valid(exec) || !id) return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned)exec->id;
    return CUDA_SUCCESS;
}

/* ---- running ---- */

static bool is_freed_in(CUgraph graph, CUdeviceptr pointer) {
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->freed == pointer) return true;
    return false;
}

/* Memory that an earlier run left allocated: freed first if the instance was made so, else an error. */
static CUresult clear_left_locked(CUgraphExec exec) {
    for (CUgraphNode node = exec->graph->first; node; node = node->next) {
        if (!node->memory || !graph_memory_taken(node->memory)) continue;
        if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) return CUDA_ERROR_INVALID_VALUE;
        graph_memory_free_locked(node->memory);
    }
    return CUDA_SUCCESS;
}

/* All of the run's memory, in the order of the nodes; what the run itself frees goes back before the next is taken.
 * After a refusal nothing of this run stays taken. */
static CUresult run_memory_locked(CUgraph graph) {
    CUresult result = CUDA_SUCCESS;
    CUgraphNode node = graph->first;
    for (; node && result == CUDA_SUCCESS; node = node->next) {
        if (node->memory) result = graph_memory_take_locked(node->memory);
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            struct memory *memory = memory_find(node->freed);
            if (!memory || memory->kind != MEMORY_GRAPH || !graph_memory_free_locked(memory))
                result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result == CUDA_SUCCESS) return result;
    for (CUgraphNode done = graph->first; done != node; done = done->next)
        if (done->memory && !is_freed_in(graph, done->memory->base)) graph_memory_free_locked(done->memory);
    return result;
}

static CUfunction kernel_of(CUgraphNode node) {
    return node->kernel.func ? node->kernel.func : (CUfunction)(void *)node->kernel.kern;
}

/* The most that a kernel of the graph needs for each thread. */
static uint32_t local_bytes(CUgraph graph) {
    uint32_t most = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        uint32_t needed = 0;
        if (node->enabled && node->type == CU_GRAPH_NODE_TYPE_KERNEL && kernel_of(node))
            needed = kernel_of(node)->local_bytes;
        else if (node->enabled && node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            needed = local_bytes(node->child);
        if (needed > most) most = needed;
    }
    return most;
}

static void run_work(CUgraph graph, CUstream stream) {
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (!node->enabled) continue;
        CUfunction function;
        switch (node->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            function = kernel_of(node);
            launch_counted(stream_context(stream));
            if (function && function->ns) stream_work(stream, function->ns);
            break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            if (node->effective) copy_3d(&node->copy);
            break;
        case CU_GRAPH_NODE_TYPE_MEMSET:
            if (node->effective)
                set_2d(node->set.dst, node->set.pitch, node->set.value, node->set.elementSize, node->set.width,
                       node->set.height);
            break;
        case CU_GRAPH_NODE_TYPE_HOST:
            if (node->effective) node->host.fn(node->host.userData);
            break;
        case CU_GRAPH_NODE_TYPE_GRAPH:
            run_work(node->child, stream);
            break;
        default:
            break;
        }
    }
}

CUAPI(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    if (!exec_valid(exec)) return CUDA_ERROR_INVALID_VALUE;
    TRY(room_for_local(stream_context(stream), local_bytes(exec->graph)));
    if (exec->graph->remembers) {
        driver_lock();
        CUresult result = clear_left_locked(exec);
        if (result == CUDA_SUCCESS) result = run_memory_locked(exec->graph);
        driver_unlock();
        TRY(result);
    }
    run_work(exec->graph, stream);
    return CUDA_SUCCESS;
}

CUAPI(cuGraphUpload, (CUgraphExec exec, CUstream stream)) {
    ENTER_CONTEXT();
    TRY(stream_check(stream));
    return exec_valid(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- changing an instance ---- */

static CUresult update(CUgraphExec exec, CUgraph graph) {
    if (!exec_valid(exec) || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
    if (exec->graph->nodes != graph->nodes || exec->graph->remembers) return (CUresult)910;
    CUgraphNode ours = exec->graph->first;
    for (CUgraphNode theirs = graph->first; theirs; theirs = theirs->next, ours = ours->next)
        if (ours->type != theirs->type) return (CUresult)910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
    driver_lock();
    CUgraph fresh = graph_copy(graph);
    if (fresh) {
        graph_free_locked(exec->graph);
        exec->graph = fresh;
    }
    driver_unlock();
    return fresh ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)) {
    ENTER();
    CUresult result = update(exec, graph);
    if (info) *info = (CUgraphExecUpdateResultInfo){.result = result == CUDA_SUCCESS ? 0 : 1};
    return result;
}

CUAPI(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *info)) {
    ENTER();
    CUresult result = update(exec, graph);
    if (error_node) *error_node = NULL;
    if (info) *info = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

/* The instance's own copy of a node of its source graph. */
static CUgraphNode own_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type) {
    if (!exec_valid(exec)) return NULL;
    for (CUgraphNode own = exec->graph->first; own; own = own->next)
        if (own->origin == node && own->type == type) return own;
    return NULL;
}

CUAPI(cuGraphExecKernelNodeSetParams_v2,
      (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    CUgraphNode own = own_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!own || !parameters) return CUDA_ERROR_INVALID_VALUE;
    own->kernel = *parameters;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)) {
    ENTER();
    CUgraphNode own = own_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!own || !parameters) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&own->kernel, parameters, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return CUDA_SUCCESS;
}

CUAPI(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned enabled)) {
    ENTER();
    if (!node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode own = own_node(exec, node, node->type);
    if (!own) return CUDA_ERROR_INVALID_VALUE;
    own->enabled = enabled != 0;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphNodeGetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned *enabled)) {
    ENTER();
    if (!node_valid(node) || !enabled) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode own = own_node(exec, node, node->type);
    if (!own) return CUDA_ERROR_INVALID_VALUE;
    *enabled = own->enabled;
    return CUDA_SUCCESS;
}
