"""The dashboard's panels and their queries, with Grafana's variables filled in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "chart" / "files" / "dashboard.json"


def panels() -> list[dict[str, Any]]:
    """All panels, rows of titles too, from top to bottom."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
    return found


def filled(expression: str) -> str:
    """A query as Grafana asks it with everything chosen."""
    for name, value in {"$__rate_interval": "15s", "$node": ".*", "$namespace": ".*", "$pod": ".*"}.items():
        expression = expression.replace(name, value)
    return expression


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel, query."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], filled(target["expr"])
