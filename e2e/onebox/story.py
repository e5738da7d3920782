"""How the demo tells: numbered steps with their time, what was seen, and whether it is as said."""

import sys
import time
from collections.abc import Iterable, Sequence

GREEN, RED, BOLD, DIM, PLAIN = "\033[32m", "\033[31m", "\033[1m", "\033[2m", "\033[0m"


class NotAsSaidError(Exception):
    """A step went otherwise than the story says."""


class Story:
    """Writes to the terminal as things happen."""

    def __init__(self, steps: int, coloured: bool | None = None) -> None:
        self._steps = steps
        self._step = 0
        self._begun = time.monotonic()
        self._coloured = sys.stdout.isatty() if coloured is None else coloured

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        seconds = time.monotonic() - self._begun
        self.line()
        self.line(self._paint(f"[{self._step}/{self._steps}] {title}", BOLD) + self._paint(f"  ({seconds:.1f} s)", DIM))

    def line(self, text: str = "") -> None:
        """One line of plain text."""
        print(text, flush=True)

    def show(self, text: str) -> None:
        """What somebody else said, set in."""
        for line in text.rstrip("\n").splitlines():
            self.line(f"    {line}".rstrip())

    def diff(self, lines: Iterable[str]) -> None:
        """Lines of a unified diff, without its head."""
        for line in lines:
            colour = GREEN if line.startswith("+") else RED if line.startswith("-") else DIM
            self.line("    " + self._paint(line, colour))

    def check(self, holds: bool, claim: str) -> None:
        """Say the claim; the story ends here if it doesn't hold."""
        if not holds:
            self.line(self._paint(f"  ✗ not so: {claim}", RED))
            raise NotAsSaidError(claim)
        self.line(self._paint("  ✓ ", GREEN) + claim)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table with columns as wide as they need to be."""
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        rule = "  ".join("─" * width for width in widths)
        for index, row in enumerate([head, *rows]):
            padded = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            self.line("    " + "  ".join([row[0].ljust(widths[0]), *padded]))
            if index == 0:
                self.line("    " + rule)

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._coloured else text
