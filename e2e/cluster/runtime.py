"""Stands for NVIDIA's container runtime: runc, but a container that asks for a card gets the simulated driver's files.

containerd calls it with runc's own arguments after `--card FOLDER`: the folder holds the driver's libraries, nvidia-smi
and the state that all processes of the card share. Only the standard library: it runs for each step of each container.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

RUNC = "/usr/sbin/runc"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"  # where the dynamic linker looks on Debian
FILES = {
    "libcuda.so.1": f"{LIBRARIES}/libcuda.so.1",
    "libnvidia-ml.so.1": f"{LIBRARIES}/libnvidia-ml.so.1",
    "nvidia-smi": "/usr/bin/nvidia-smi",
}
STATE = "/run/simgpu"


def main(arguments: list[str]) -> None:
    """Change the container's specification if one is about to be created, then become runc."""
    card, own = Path(arguments[1]), arguments[2:]
    if "create" in own and "--bundle" in own:
        specification = Path(own[own.index("--bundle") + 1]) / "config.json"
        content = json.loads(specification.read_text())
        if add_card(content, card):
            specification.write_text(json.dumps(content))
    os.execv(RUNC, [RUNC, *own])  # noqa: S606 (the very runtime that this stands in front of)


def add_card(content: dict[str, Any], card: Path) -> bool:
    """Add the mounts where NVIDIA_VISIBLE_DEVICES asks for a device; whether it did."""
    variables: list[str] = content["process"].get("env") or []
    asked = dict(variable.split("=", 1) for variable in variables).get("NVIDIA_VISIBLE_DEVICES", "")
    if asked in ("", "void", "none"):
        return False
    mounts: list[dict[str, Any]] = content.setdefault("mounts", [])
    for name, target in FILES.items():
        mounts.append({"destination": target, "type": "bind", "source": str(card / name), "options": ["bind", "ro"]})
    mounts.append({"destination": STATE, "type": "bind", "source": str(card / "state"), "options": ["bind", "rw"]})
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
