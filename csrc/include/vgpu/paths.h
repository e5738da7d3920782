/* Paths inside a container that has a share. Constants, because a tenant must not be able to name other ones.
 * Host paths are configuration and unknown to C. The same names stand in webhook/names.py and monitor/names.py;
 * tests/contract compares them. */
#ifndef VGPU_PATHS_H
#define VGPU_PATHS_H

#define VGPU_LIBRARY_DIR  "/usr/local/vgpu"
#define VGPU_LIBRARY_FILE "libvgpu.so"
#define VGPU_PRELOAD_FILE "/etc/ld.so.preload"

/* Ledger of the container: an emptyDir of the pod, one file. */
#define VGPU_REGION_DIR  "/run/vgpu"
#define VGPU_REGION_FILE "region"

/* Trusted source of the quota: a projected volume. Each file may be absent or empty. */
#define VGPU_QUOTA_DIR           "/etc/vgpu"
#define VGPU_QUOTA_LIMIT_FILE    "limit"        /* what KAI computed, such as "4147m" */
#define VGPU_QUOTA_MEMORY_FILE   "gpu-memory"   /* annotation gpu-memory, MiB */
#define VGPU_QUOTA_FRACTION_FILE "gpu-fraction" /* annotation gpu-fraction, 0 < x < 1 */

#endif
