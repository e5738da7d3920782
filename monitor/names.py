"""Names that this part shares with others: pod annotations, volumes, files. Constants only.

In-pod names are the C header's (csrc/include/vgpu/paths.h), annotations and labels are KAI's, volume names are the
webhook's. A test compares the copies.
"""

ANNOTATION_MEMORY = "gpu-memory"
ANNOTATION_FRACTION = "gpu-fraction"
ANNOTATION_CONTAINER = "gpu-fraction-container-name"
ANNOTATION_DEVICES = "gpu-fraction-num-devices"

# KAI writes the card that a share landed on as a group: the sharing pods carry its label (with a suffix where there
# are several), the pod that reserves the card carries the label and, as an annotation, the card's UUID.
LABEL_GPU_GROUP = "runai-gpu-group"
ANNOTATION_RESERVED_UUID = "run.ai/reserve_for_gpu_index"

VOLUME_PRELOAD = "vgpu-preload"
VOLUME_REGION = "vgpu-region"
VOLUME_QUOTA = "vgpu-quota"

REGION_DIR = "/run/vgpu"
REGION_FILE = "region"
QUOTA_LIMIT_FILE = "limit"
QUOTA_MEMORY_FILE = "gpu-memory"
QUOTA_FRACTION_FILE = "gpu-fraction"

# The kubelet's layout of a pod's volumes, below its root directory.
PODS_DIR = "pods"
EMPTY_DIR_PLUGIN = "kubernetes.io~empty-dir"
PROJECTED_PLUGIN = "kubernetes.io~projected"
