"""Draws the dashboard's panels as one SVG picture, as Grafana lays them out: no browser and no Grafana needed."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

COLUMN, ROW, GAP = 58, 30, 6
BACKGROUND, PANEL, BORDER, TEXT, DIM = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e9193"
GREEN, RED, BLUE = "#56a64b", "#e02f44", "#3274d9"
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#ffa6b0", "#96d98d", "#ffee52")
VARIABLE = re.compile(r"\$\w+")
FONT = "font-family='Inter,Helvetica,Arial,sans-serif'"
Series = list[tuple[str, list[tuple[float, float]]]]  # legend, (time, value)


def number(value: float, unit: str) -> str:
    """A value as Grafana writes it."""
    if unit == "bytes":
        for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
            if abs(value) >= 1024**power:
                return f"{value / 1024**power:.3g} {name}"
        return f"{value:.0f} B"
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    return f"{value:.3g}"


def text(x: float, y: float, words: str, size: int = 12, *, colour: str = TEXT, anchor: str = "start") -> str:
    """A line of text."""
    style = f"font-size='{size}' fill='{colour}' text-anchor='{anchor}' {FONT}"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(words)}</text>"


def box(area: tuple[float, float, float, float], colour: str, border: str = "none", radius: int = 2) -> str:
    """A filled rectangle: x, y, width, height."""
    x, y, wide, high = area
    size = f"width='{wide:.1f}' height='{high:.1f}' rx='{radius}'"
    return f"<rect x='{x:.1f}' y='{y:.1f}' {size} fill='{colour}' stroke='{border}'/>"


def fit(words: str, wide: float, size: int = 11) -> str:
    """Cut a text to a width."""
    most = int(wide / (size * 0.56))
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


class Drawing:
    """The picture while it is drawn. `since` and `until` are the ends of all time axes."""

    def __init__(self, since: float, until: float) -> None:
        self._since, self._until = since, until
        self._parts: list[str] = []
        self._bottom = 0.0

    def render(self, title: str) -> str:
        """The whole SVG."""
        wide, high = 24 * COLUMN, self._bottom + 44
        size = f"viewBox='0 0 {wide} {high:.0f}' width='{wide}' height='{high:.0f}'"
        top = box((0, 0, wide, high), BACKGROUND) + text(10, 26, title, 17)
        body = "\n".join(self._parts)
        return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{top}<g transform='translate(0,40)'>{body}</g></svg>\n"

    def panel(self, panel: Mapping[str, Any], series: Series, table: Sequence[Mapping[str, str]] = ()) -> None:
        """Draw one panel with its data."""
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN + GAP / 2, place["y"] * ROW + GAP / 2
        wide, high = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
        self._bottom = max(self._bottom, y + high)
        if panel["type"] == "row":
            self._parts.append(text(x + 4, y + 17, f"▾ {VARIABLE.sub('All', panel['title'])}", 14))
            return
        self._parts.append(
            box((x, y, wide, high), PANEL, BORDER) + text(x + 8, y + 17, fit(panel["title"], wide, 12), 12)
        )
        inner = (x + 8, y + 26, wide - 16, high - 34)
        kind: str = panel["type"]
        if kind == "table":
            self._table(inner, panel, table)
            return
        draw: Callable[[tuple[float, float, float, float], Mapping[str, Any], Series], None] = {
            "stat": self._stat,
            "bargauge": self._bars,
            "state-timeline": self._states,
        }.get(kind, self._lines)
        draw(inner, panel, series)

    def _stat(self, area: tuple[float, float, float, float], panel: Mapping[str, Any], series: Series) -> None:
        x, y, wide, high = area
        value = series[0][1][-1][1] if series and series[0][1] else 0
        defaults = panel["fieldConfig"]["defaults"]
        colour = BLUE if "color" in defaults else RED if value >= defaults["thresholds"]["steps"][1]["value"] else GREEN
        self._parts.append(
            box((x, y, wide, high), colour)
            + text(x + wide / 2, y + high / 2 + 11, f"{value:.0f}", 32, colour="#ffffff", anchor="middle")
        )

    def _bars(self, area: tuple[float, float, float, float], panel: Mapping[str, Any], series: Series) -> None:
        x, y, wide, high = area
        step = min(40.0, high / max(1, len(series)))
        most = panel["fieldConfig"]["defaults"]["max"]
        for i, (name, points) in enumerate(series):
            value = points[-1][1]
            length = min(1.0, value / most) * wide
            self._parts.append(text(x, y + i * step + 12, fit(name, wide * 0.7), 11, colour=DIM))
            self._parts.append(text(x + wide, y + i * step + 12, number(value, "percentunit"), 12, anchor="end"))
            self._parts.append(box((x, y + i * step + 17, length, step - 22), RED if value > 1 else GREEN))

    def _states(self, area: tuple[float, float, float, float], panel: Mapping[str, Any], series: Series) -> None:
        x, y, wide, high = area
        left = wide * 0.36
        step = min(30.0, high / max(1, len(series)))
        for i, (name, points) in enumerate(series):
            good = name.endswith((" enforced", " unused"))
            self._parts.append(text(x, y + i * step + step / 2 + 4, fit(name, left), 11))
            for time, _ in points:
                at = x + left + (time - self._since) / (self._until - self._since) * (wide - left)
                size = (wide - left) * 1.05 / max(1.0, self._until - self._since)
                self._parts.append(box((at, y + i * step + 2, size, step - 4), GREEN if good else RED, radius=0))

    def _table(
        self, area: tuple[float, float, float, float], panel: Mapping[str, Any], table: Sequence[Mapping[str, str]]
    ) -> None:
        x, y, wide, _ = area
        order = panel["transformations"][0]["options"]["indexByName"]
        columns = sorted(order, key=lambda name: order[name])
        step = wide / len(columns)
        for i, name in enumerate(columns):
            self._parts.append(text(x + i * step, y + 12, name, 12, colour=BLUE))
            for j, row in enumerate(table):
                self._parts.append(text(x + i * step, y + 34 + j * 20, fit(row.get(name, ""), step), 11))

    def _lines(self, area: tuple[float, float, float, float], panel: Mapping[str, Any], series: Series) -> None:
        x, y, wide, high = area
        defaults = panel["fieldConfig"]["defaults"]
        stacked = "stacking" in defaults.get("custom", {})
        legend_rows = min(3, (len(series) + 2) // 3)
        left, bottom = 62, 18 + 15 * legend_rows
        if stacked:
            series = stack(series)
        peak = max((value for _, points in series for _, value in points), default=0)
        most = defaults.get("max", peak * 1.1 or 1)
        x0, y0, w, h = x + left, y, wide - left, high - bottom
        for i in range(5):
            level = y0 + h - h * i / 4
            self._parts.append(f"<path d='M{x0:.1f} {level:.1f}h{w:.1f}' stroke='{BORDER}'/>")
            self._parts.append(
                text(x0 - 6, level + 4, number(most * i / 4, defaults.get("unit", "")), 10, colour=DIM, anchor="end")
            )
        span = self._until - self._since
        for i in range(5):
            ago = span * (4 - i) / 4
            at = x0 + w * i / 4
            self._parts.append(
                text(
                    at,
                    y0 + h + 14,
                    f"-{ago:.0f} s" if ago else "now",
                    10,
                    colour=DIM,
                    anchor=("start", "middle", "middle", "middle", "end")[i],
                )
            )
        for i, (name, points) in reversed(list(enumerate(series))):
            colour = COLOURS[i % len(COLOURS)]
            xy = [(x0 + (t - self._since) / span * w, y0 + h - min(1.0, v / most) * h) for t, v in points]
            line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in xy)
            if stacked and xy:
                fill = f"{line}L{xy[-1][0]:.1f} {y0 + h:.1f}L{xy[0][0]:.1f} {y0 + h:.1f}Z"
                self._parts.append(f"<path d='{fill}' fill='{colour}' fill-opacity='0.35'/>")
            self._parts.append(f"<path d='{line}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
            if i < 3 * legend_rows:
                lx, ly = x + (i % 3) * wide / 3, y + high - 15 * legend_rows + 15 * (i // 3) + 9
                self._parts.append(
                    box((lx, ly - 6, 12, 4), colour) + text(lx + 17, ly, fit(name, wide / 3 - 24, 10), 10, colour=DIM)
                )


def stack(series: Series) -> Series:
    """Put each series on top of those before it."""
    heights: dict[float, float] = {}
    stacked: Series = []
    for name, points in series:
        raised = []
        for time, value in points:
            heights[time] = heights.get(time, 0.0) + value
            raised.append((time, heights[time]))
        stacked.append((name, raised))
    return stacked
