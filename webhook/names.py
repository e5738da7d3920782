"""Names that other parts and other products must find as they are.

In-pod paths stand in csrc/include/vgpu/paths.h too, the abi number in version.h; tests/contract compares them.
"""

ABI = 1

# In the container of a share. Constants: a tenant must not be able to name other ones.
LIBRARY_DIR = "/usr/local/vgpu"
LIBRARY_FILE = "libvgpu.so"
PRELOAD_FILE = "/etc/ld.so.preload"
REGION_DIR = "/run/vgpu"
QUOTA_DIR = "/etc/vgpu"
QUOTA_LIMIT_FILE = "limit"
QUOTA_MEMORY_FILE = "gpu-memory"
QUOTA_FRACTION_FILE = "gpu-fraction"

# Volumes put into the pod.
LIBRARY_VOLUME = "vgpu-library"
PRELOAD_VOLUME = "vgpu-preload"
REGION_VOLUME = "vgpu-region"
QUOTA_VOLUME = "vgpu-quota"

# Environment of the container.
MEMORY_LIMIT_ENV = "CUDA_DEVICE_MEMORY_LIMIT"
DISABLE_CONTROL_ENV = "CUDA_DISABLE_CONTROL"
POD_UID_ENV = "POD_UID"
CONTAINER_NAME_ENV = "CONTAINER_NAME"
VISIBLE_DEVICES_ENV = "NVIDIA_VISIBLE_DEVICES"

# Annotations of KAI Scheduler.
GPU_MEMORY = "gpu-memory"
GPU_FRACTION = "gpu-fraction"
GPU_CONTAINER = "gpu-fraction-container-name"
GPU_DEVICES = "gpu-fraction-num-devices"
KAI_CONFIG_MAP = "runai/shared-gpu-configmap"
# Variables that KAI fills from the container's ConfigMap: a reference in one of them says which ConfigMap that is.
KAI_ENVS = (VISIBLE_DEVICES_ENV, "RUNAI_NUM_OF_GPUS", "GPU_PORTION", MEMORY_LIMIT_ENV)

# Our own annotation and namespace label.
INJECT = "kai-resource-isolator.io/inject"
NAMESPACE_LABEL = "kai-resource-isolator.io/webhook"
NAMESPACE_IGNORE = "ignore"

# Kubernetes.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
POD_SECURITY_ENFORCE = "pod-security.kubernetes.io/enforce"
GPU_RESOURCE_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-")
