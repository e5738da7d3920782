/* Graphs, as graph.c, graph_node.c, graph_exec.c, graph_memory.c and capture.c share them. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "module.h"
#include "stream.h"

struct CUgraphNode_st {
    uint32_t magic;
    CUgraphNodeType type;
    CUgraph graph;
    bool enabled;
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS set;
        CUDA_HOST_NODE_PARAMS host;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUdeviceptr freed;
        CUgraph child;
        CUevent event;
    };
    bool effective;        /* a copy or set whose parameters are known */
    struct memory *memory; /* of an allocation node */
    CUgraphNode origin;    /* in the graph that this one's was cloned from */
    CUgraphNode *before;   /* nodes that this one depends on */
    size_t dependencies, room;
    struct CUgraphNode_st *next; /* in the order of adding, in which dependencies always come first */
};

struct CUgraph_st {
    uint32_t magic;
    unsigned long long id;
    CUgraphNode first, last;
    size_t nodes;
    bool child;        /* belongs to a node of another graph */
    bool instantiated; /* of a graph with memory nodes there may be one instance at a time */
    bool remembers;    /* has memory nodes */
};

/* An instance: the nodes as they were, in order. */
struct CUgraphExec_st {
    uint32_t magic;
    unsigned long long flags;
    unsigned long long id;
    CUgraph graph; /* a copy of its own */
    CUgraph source;
};

#define GRAPH_MAGIC 0x47726166u
#define NODE_MAGIC  0x4e6f6465u
#define EXEC_MAGIC  0x47457865u

static inline bool graph_valid(CUgraph graph) {
    return graph && graph->magic == GRAPH_MAGIC;
}

static inline bool node_valid(CUgraphNode node) {
    return node && node->magic == NODE_MAGIC;
}

CUgraph graph_new(void);
void graph_free_locked(CUgraph graph);
/* Adds a node behind `count` others of the same graph. */
CUresult node_add(CUgraphNode *result, CUgraph graph, CUgraphNodeType type, const CUgraphNode *before, size_t count);
CUresult node_depend(CUgraphNode node, CUgraphNode before);
/* A copy with the same nodes; memory nodes share their memory with the original. */
CUgraph graph_copy(CUgraph graph);

CUresult graph_add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                              CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult graph_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr pointer);

/* ---- memory of graphs (graph_memory.c), all locked ---- */

/* Addresses for an allocation node; the card's memory comes when the graph runs. */
struct memory *graph_memory_new_locked(int device, uint64_t bytes);
void graph_memory_hold_locked(struct memory *memory);
void graph_memory_drop_locked(struct memory *memory);
CUresult graph_memory_take_locked(struct memory *memory);
bool graph_memory_taken(const struct memory *memory);

#endif
