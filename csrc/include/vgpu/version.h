/* The one place that says which release and which abi this is. Read by the compiler, by make and, through
 * `vgpu_version()` of the built library, by libsync. */
#ifndef VGPU_VERSION_H
#define VGPU_VERSION_H

#define VGPU_VERSION "0.1.0"

/* Number of the region's layout. Libraries of one abi share one region file; a library with another layout lives in
 * another directory of the node (`<base>/abi-<n>`), so that two ledgers never serve one container. */
#define VGPU_ABI 1

#endif
