/* Memory pools: a pool is charged what it has reserved of the card, used or kept, and that shrinks only when the driver
 * trims it. The driver tells it (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), so the charge follows the driver's figure. */
#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include "context.h"

/* A pointer that isn't linear memory was freed: it may have been a pool's. */
void vgpu_pool_freed(struct vgpu_process *process, CUdeviceptr pointer);

/* With pool_lock: the same for the reserve that the driver keeps for graphs (account_graph.c). */
void vgpu_graphs_settle(struct vgpu_process *process);

/* Asks the driver what pools and graphs have reserved now and charges that. Cheap without pools. */
void vgpu_pools_settle(struct vgpu_process *process);

#endif
