"""Our declarations are the vendor's: the same program, compiled with either header, prints the same numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OWN = ROOT / "csrc" / "include"
VENDOR = Path(sysconfig.get_paths()["purelib"]) / "nvidia"

# Ours is the newest form under the plain name; the vendor's plain name stays an older form.
NEWEST = {
    "CUDA_MEMSET_NODE_PARAMS": "CUDA_MEMSET_NODE_PARAMS_v2",
    "CUDA_KERNEL_NODE_PARAMS": "CUDA_KERNEL_NODE_PARAMS_v2",
}
FILLERS = {"reserved", "reserved0", "reserved1", "reserved2", "pad", "internal", "oversize", "srcContext", "dstContext"}


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def constants(text: str) -> list[str]:
    """Enumerators and numeric macros."""
    names = re.findall(r"^\s+((?:CU|NVML)\w+) = ", text, re.MULTILINE)
    names += re.findall(r"^#define ((?:CU|NVML)_\w+|CUDA_ARRAY3D_\w+)\s+\(?-?(?:0x)?\d", text, re.MULTILINE)
    return sorted(set(names))


def structs(text: str) -> dict[str, list[str]]:
    """Names of structs with their own members (not those of nested structs)."""
    found: dict[str, list[str]] = {}
    for match in re.finditer(r"^typedef (?:struct|union) \w+ \{\n(.*?)^\} (\w+);", text, re.MULTILINE | re.DOTALL):
        body, flattened = match.group(1), ""
        while flattened != body:  # anonymous members count as the struct's own, named ones by their name
            flattened, body = body, re.sub(r"(?:struct|union)\s*\{([^{}]*)\}\s*;", r"\1", body)
            body = re.sub(r"(?:struct|union)\s*\{[^{}]*\}\s*(\w+);", r"int \1;", body)
        members = re.findall(r"(\w+)(?:\[[^\]]*\])*;", body)
        found[match.group(2)] = [m for m in members if m not in FILLERS]
    return found


def printed(header: Path, rows: list[tuple[str, str]], tmp_path: Path, *flags: str) -> dict[str, int]:
    """The values of these expressions where the header is included."""
    lines = [f'    printf("\\"{label}\\": %lld,\\n", (long long)({value}));' for label, value in rows]
    program = tmp_path / f"{header.parent.parent.name}-{header.stem}.c"
    program.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n    puts("{{");\n'
        + "\n".join(lines)
        + '\n    puts("\\"end\\": 0}");\n    return 0;\n}\n'
    )
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17", "-w", *flags]
    subprocess.run([*compiler, program, "-o", program.with_suffix("")], check=True, cwd=ROOT)
    answer: dict[str, int] = json.loads(
        subprocess.run([program.with_suffix("")], check=True, capture_output=True, text=True).stdout
    )
    return answer


@pytest.mark.parametrize(
    ("own", "vendor"),
    [
        ("cuda_api.h", VENDOR / "cu13" / "include" / "cuda.h"),
        ("cuda_api.h", VENDOR / "cuda_runtime" / "include" / "cuda.h"),
        ("nvml_api.h", VENDOR / "cu13" / "include" / "nvml.h"),
    ],
    ids=["cuda-13", "cuda-12", "nvml-13"],
)
def test_declarations_agree_with_the_vendors(own: str, vendor: Path, tmp_path: Path) -> None:
    text, theirs = without_comments((OWN / own).read_text()), without_comments(vendor.read_text())

    def known(name: str) -> bool:
        return re.search(rf"\b{name}\b", theirs) is not None

    # The end of an enum of attributes moves with each release.
    ours = [(name, name) for name in constants(text) if known(name) and not name.endswith("_MAX")]
    vendors = list(ours)
    for name, members in structs(text).items():
        newest = NEWEST.get(name, name)
        if not known(newest):
            continue
        for rows, struct in ((ours, name), (vendors, newest)):
            rows.append((f"sizeof {name}", f"sizeof({struct})"))
            rows += [(f"{name}.{m}", f"offsetof({struct}, {m})") for m in members if known(m)]
    assert len(ours) > 80
    internal = ["-D__CUDA_API_VERSION_INTERNAL"] if own == "cuda_api.h" else []
    assert printed(OWN / own, ours, tmp_path) == printed(vendor, vendors, tmp_path, *internal)


def test_every_struct_is_compared() -> None:
    """A struct of ours that no vendor header knows would be an invention."""
    known = "".join(path.read_text() for path in (VENDOR / "cu13" / "include").glob("*.h"))
    for header in ("cuda_api.h", "nvml_api.h"):
        for name in structs(without_comments((OWN / header).read_text())):
            assert re.search(rf"\b{name}\b", known), name
