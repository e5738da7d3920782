"""Names that libsync shares with the library, the webhook and the monitor; tests/contract compares the copies."""

LIBRARY_FILE = "libvgpu.so"
PRELOAD_FILE = "ld.so.preload"
MANIFEST_FILE = "manifest.json"
STATUS_FILE = "status.json"

# Where the library's directory is mounted in a container, and so what the preload file has to say.
LIBRARY_IN_POD = "/usr/local/vgpu/libvgpu.so"
PRELOAD_TEXT = LIBRARY_IN_POD + "\n"

ABI_DIRECTORY_PREFIX = "abi-"
DEFAULT_BASE = "/var/lib/kai-resource-isolator"
