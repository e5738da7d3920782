"""Which machine a shared library is for, from its ELF header alone (nothing is loaded)."""

import struct
from pathlib import Path

from libsync.errors import RefusalError

MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16sHH")
_SHARED_OBJECT = 3


def read_architecture(path: Path) -> str:
    """Name of the machine (as uname gives it) that the shared library is for; RefusalError if it isn't one."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise RefusalError(
            f"can't read the library {path}: {error.strerror}; run `make build` or set --library"
        ) from error
    if len(head) < _HEADER.size or not head.startswith(b"\x7fELF\x02\x01"):
        raise RefusalError(f"{path} is no 64-bit little-endian ELF file; set --library to a libvgpu.so")
    _, kind, machine = _HEADER.unpack(head)
    if kind != _SHARED_OBJECT:
        raise RefusalError(f"{path} is no shared library; set --library to a libvgpu.so")
    return MACHINES.get(machine, f"ELF machine {machine}")
