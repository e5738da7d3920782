/* Graphs: creating, copying, destroying, and asking for nodes and edges. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (!graph) return NULL;
    graph->magic = GRAPH_MAGIC;
    graph->id = next_id();
    return graph;
}

void graph_free_locked(CUgraph graph) {
    for (CUgraphNode node = graph->first, next; node; node = next) {
        next = node->next;
        if (node->memory) graph_memory_drop_locked(node->memory);
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child) graph_free_locked(node->child);
        free(node->before);
        node->magic = 0;
        free(node);
    }
    graph->magic = 0;
    free(graph);
}

CUresult node_depend(CUgraphNode node, CUgraphNode before) {
    if (!node_valid(before) || before->graph != node->graph || before == node) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < node->dependencies; i++)
        if (node->before[i] == before) return CUDA_SUCCESS;
    if (node->dependencies == node->room) {
        size_t room = node->room ? node->room * 2 : 4;
        CUgraphNode *larger = realloc(node->before, room * sizeof *larger);
        if (!larger) return CUDA_ERROR_OUT_OF_MEMORY;
        node->before = larger;
        node->room = room;
    }
    node->before[node->dependencies++] = before;
    return CUDA_SUCCESS;
}

CUresult node_add(CUgraphNode *result, CUgraph graph, CUgraphNodeType type, const CUgraphNode *before, size_t count) {
    if (!graph_valid(graph) || (count && !before)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    node->magic = NODE_MAGIC;
    node->type = type;
    node->graph = graph;
    node->enabled = true;
    for (size_t i = 0; i < count; i++) {
        CUresult status = node_depend(node, before[i]);
        if (status == CUDA_SUCCESS) continue;
        free(node->before);
        free(node);
        return status;
    }
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->nodes++;
    *result = node;
    return CUDA_SUCCESS;
}

static CUgraphNode copy_of(CUgraph graph, CUgraphNode origin) {
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (node->origin == origin) return node;
    return NULL;
}

static void copy_contents(CUgraphNode twin, CUgraphNode node) {
    struct CUgraphNode_st own = *twin;
    *twin = *node;
    twin->graph = own.graph;
    twin->next = own.next;
    twin->before = NULL;
    twin->dependencies = twin->room = 0;
    twin->origin = node;
    if (twin->memory) graph_memory_hold_locked(twin->memory);
    if (twin->type == CU_GRAPH_NODE_TYPE_GRAPH && (twin->child = graph_copy(node->child))) twin->child->child = true;
}

CUgraph graph_copy(CUgraph graph) {
    CUgraph copy = graph_new();
    if (!copy) return NULL;
    copy->remembers = graph->remembers;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        CUgraphNode twin;
        if (node_add(&twin, copy, node->type, NULL, 0) != CUDA_SUCCESS) break;
        copy_contents(twin, node);
        for (size_t i = 0; i < node->dependencies; i++)
            node_depend(twin, copy_of(copy, node->before[i]));
    }
    return copy;
}

CUAPI(cuGraphCreate, (CUgraph * graph, unsigned flags)) {
    ENTER();
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_new();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuGraphDestroy, (CUgraph graph)) {
    ENTER();
    if (!graph_valid(graph) || graph->child) return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    graph_free_locked(graph);
    driver_unlock();
    return CUDA_SUCCESS;
}

CUAPI(cuGraphClone, (CUgraph * clone, CUgraph graph)) {
    ENTER();
    if (!clone || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
    if (graph->remembers) return CUDA_ERROR_NOT_SUPPORTED; /* one graph, one set of addresses */
    driver_lock();
    *clone = graph_copy(graph);
    driver_unlock();
    return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUAPI(cuGraphNodeFindInClone, (CUgraphNode * result, CUgraphNode origin, CUgraph clone)) {
    ENTER();
    if (!result || !node_valid(origin) || !graph_valid(clone)) return CUDA_ERROR_INVALID_VALUE;
    *result = copy_of(clone, origin);
    return *result ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type)) {
    ENTER();
    if (!type || !node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

/* Lists are given as the driver gives them: NULL asks for the number, room beyond it is filled with NULL. */
static CUresult give(CUgraphNode *out, size_t *count, const CUgraphNode *nodes, size_t have) {
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < have ? nodes[i] : NULL;
    if (!out || *count > have) *count = have;
    return CUDA_SUCCESS;
}

static CUresult give_matching(CUgraph graph, CUgraphNode *out, size_t *count, bool roots_only) {
    CUgraphNode *nodes = calloc(graph->nodes + 1, sizeof *nodes);
    if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t have = 0;
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (!roots_only || node->dependencies == 0) nodes[have++] = node;
    CUresult result = give(out, count, nodes, have);
    free(nodes);
    return result;
}

CUAPI(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    return graph_valid(graph) && count ? give_matching(graph, nodes, count, false) : CUDA_ERROR_INVALID_VALUE;
}

CUAPI(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    return graph_valid(graph) && count ? give_matching(graph, nodes, count, true) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
    if (!graph_valid(graph) || !count || !from != !to) return CUDA_ERROR_INVALID_VALUE;
    size_t have = 0;
    for (CUgraphNode node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->dependencies; i++, have++) {
            if (!from || have >= *count) continue;
            from[have] = node->before[i];
            to[have] = node;
            if (data) memset(&data[have], 0, sizeof *data);
        }
    if (!from || *count > have) *count = have;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)) {
    ENTER();
    return edges(graph, from, to, NULL, count);
}

CUAPI(cuGraphGetEdges_v2, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)) {
    ENTER();
    return edges(graph, from, to, data, count);
}

CUAPI(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    if (!node_valid(node) || !count) return CUDA_ERROR_INVALID_VALUE;
    return give(nodes, count, node->before, node->dependencies);
}

CUAPI(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)) {
    ENTER();
    if (!node_valid(node) || !count) return CUDA_ERROR_INVALID_VALUE;
    if (data && nodes) memset(data, 0, *count * sizeof *data);
    return give(nodes, count, node->before, node->dependencies);
}

static CUresult dependents(CUgraphNode node, CUgraphNode *out, size_t *count) {
    if (!node_valid(node) || !count) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode *nodes = calloc(node->graph->nodes + 1, sizeof *nodes);
    if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t have = 0;
    for (CUgraphNode other = node->graph->first; other; other = other->next)
        for (size_t i = 0; i < other->dependencies; i++)
            if (other->before[i] == node) nodes[have++] = other;
    CUresult result = give(out, count, nodes, have);
    free(nodes);
    return result;
}

CUAPI(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *nodes, size_t *count)) {
    ENTER();
    return dependents(node, nodes, count);
}

CUAPI(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)) {
    ENTER();
    if (data && nodes && count) memset(data, 0, *count * sizeof *data);
    return dependents(node, nodes, count);
}

static CUresult add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    if (!graph_valid(graph) || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!node_valid(to[i]) || to[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
        TRY(node_depend(to[i], from[i]));
    }
    return CUDA_SUCCESS;
}

static CUresult remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    if (!graph_valid(graph) || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!node_valid(to[i])) return CUDA_ERROR_INVALID_VALUE;
        for (size_t d = 0; d < to[i]->dependencies; d++)
            if (to[i]->before[d] == from[i]) to[i]->before[d] = to[i]->before[--to[i]->dependencies];
    }
    return CUDA_SUCCESS;
}

CUAPI(cuGraphAddDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)) {
    ENTER();
    return add_edges(graph, from, to, count);
}

CUAPI(cuGraphAddDependencies_v2,
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)) {
    (void)data;
    ENTER();
    return add_edges(graph, from, to, count);
}

CUAPI(cuGraphRemoveDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)) {
    ENTER();
    return remove_edges(graph, from, to, count);
}

CUAPI(cuGraphRemoveDependencies_v2,
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)) {
    (void)data;
    ENTER();
    return remove_edges(graph, from, to, count);
}

CUAPI(cuGraphDestroyNode, (CUgraphNode node)) {
    ENTER();
    if (!node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
    if (node->memory || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_NOT_SUPPORTED;
    CUgraph graph = node->graph;
    CUgraphNode previous = NULL;
    for (CUgraphNode other = graph->first; other; other = other->next) {
        if (other->next == node) previous = other;
        for (size_t d = 0; d < other->dependencies; d++)
            if (other->before[d] == node) other->before[d] = other->before[--other->dependencies];
    }
    if (previous)
        previous->next = node->next;
    else
        graph->first = node->next;
    if (graph->last == node) graph->last = previous;
    graph->nodes--;
    node->magic = 0;
    free(node->before);
    free(node);
    return CUDA_SUCCESS;
}

CUAPI(cuGraphGetId, (CUgraph graph, unsigned *id)) {
    ENTER();
    if (!graph_valid(graph) || !id) return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned)graph->id;
    return CUDA_SUCCESS;
}

CUAPI(cuGraphDebugDotPrint, (CUgraph graph, const char *path, unsigned flags)) {
    (void)flags;
    ENTER();
    return graph_valid(graph) && path ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
