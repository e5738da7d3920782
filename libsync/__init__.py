"""DaemonSet program: puts libvgpu.so and ld.so.preload on the node, proves them, keeps them."""

# The release; csrc/include/vgpu/version.h holds the same for C, and tests/contract compares the two.
__version__ = "0.1.0"
