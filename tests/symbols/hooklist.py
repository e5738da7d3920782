"""hooks.def as Python sees it, and the list in csrc/README.md made from it.

`python -m tests.symbols.hooklist` rewrites that list; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "csrc" / "libvgpu" / "hooks.def"
README = ROOT / "csrc" / "README.md"
BEGIN, END = "<!-- made from libvgpu/hooks.def: begin -->\n", "<!-- made from libvgpu/hooks.def: end -->\n"
WHAT = {
    "ACCOUNT": "takes or gives back device memory",
    "ANSWER": "says how much memory there is",
    "WATCH": "must be known of: start, exports, launches",
    "ROUTE": "leads to other functions",
}


@dataclass(frozen=True)
class Hook:
    """A CU or NVML entry; `base`, `since` and `per_thread` have no meaning for NVML."""

    symbol: str
    what: str
    parameters: str
    base: str = ""
    since: int = 0
    per_thread: bool = False


@dataclass
class HookList:
    """All of hooks.def, in its order."""

    driver: list[Hook] = field(default_factory=list)
    nvml: list[Hook] = field(default_factory=list)
    libc: list[str] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    """Symbol to parameters of what the library only calls."""
    passed: dict[str, list[str]] = field(default_factory=dict)
    """Reason to names."""
    table: list[str] = field(default_factory=list)
    """Symbols of the name table as they stand in the file."""

    @property
    def hooked(self) -> set[str]:
        """Every symbol that the library stands in front of, libc's not counted."""
        return {hook.symbol for hook in self.driver + self.nvml}

    @property
    def passed_names(self) -> list[str]:
        """Every name that is listed with a reason."""
        return [name for names in self.passed.values() for name in names]


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    """Macro name and its arguments, split at the commas outside parentheses and quotes."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    for start in re.finditer(r"^(CU|NVML|LIBC|USE_CU|USE_NVML|PASS)\(", text, re.M):
        depth, quoted, arguments, at = 1, False, [""], start.end()
        while depth:
            character = text[at]
            quoted ^= character == '"'
            depth += 0 if quoted else (character == "(") - (character == ")")
            if character == "," and depth == 1 and not quoted:
                arguments.append("")
            elif depth:
                arguments[-1] += character
            at += 1
        yield start.group(1), [" ".join(argument.split()) for argument in arguments]


def read(path: Path = HOOKS) -> HookList:
    """Parse the list."""
    hooks = HookList()
    for macro, arguments in _entries(path.read_text()):
        match macro, arguments:
            case "CU", [symbol, base, since, stream, what, parameters, _]:
                hooks.driver.append(Hook(symbol, what, parameters[1:-1], base, int(since), stream == "PER_THREAD"))
                hooks.table.append(symbol)
            case "NVML", [symbol, what, parameters, _]:
                hooks.nvml.append(Hook(symbol, what, parameters[1:-1]))
                hooks.table.append(symbol)
            case "LIBC", [symbol]:
                hooks.libc.append(symbol)
                hooks.table.append(symbol)
            case (("USE_CU" | "USE_NVML"), [symbol, parameters, _]):
                hooks.used[symbol] = parameters[1:-1]
            case "PASS", [reason, *names]:
                hooks.passed[reason.strip('"')] = names
            case _:
                raise ValueError(f"{path}: {macro}({', '.join(arguments)}) is not in the grammar")
    return hooks


def markdown(hooks: HookList) -> str:
    """The list for people."""
    lines = []
    for what, meaning in WHAT.items():
        symbols = [hook.symbol for hook in hooks.driver + hooks.nvml if hook.what == what]
        symbols += hooks.libc if what == "ROUTE" else []
        lines += [f"**{what}: {meaning}** ({len(symbols)})", "", ", ".join(f"`{s}`" for s in symbols), ""]
    lines += ["Not hooked:", "", "| why | functions |", "|---|---|"]
    lines += [f"| {why} | {len(names)}: {_range(names)} |" for why, names in hooks.passed.items()]
    return "\n".join(lines) + "\n"


def _range(names: list[str]) -> str:
    few = 6
    shown = ", ".join(f"`{name}`" for name in names[:few])
    return shown if len(names) <= few else f"{shown}, … (all in hooks.def)"


def with_list(readme: str, hooks: HookList) -> str:
    """The README's text with the list between its marks brought up to date."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{markdown(hooks)}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_list(README.read_text(), read()))
