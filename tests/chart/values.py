"""chart/values.yaml is the one source: its comments give README's table, its defaults and `@schema` lines the schema.

`python -m tests.chart.values --write` makes both anew.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "chart"
VALUES, SCHEMA, README = CHART / "values.yaml", CHART / "values.schema.json", CHART / "README.md"
# Kubernetes' own objects among the values, and the fields that they have.
OBJECTS = {
    "resources": {"requests": "object", "limits": "object", "claims": "array"},
    "affinity": {"nodeAffinity": "object", "podAffinity": "object", "podAntiAffinity": "object"},
    "seLinuxOptions": {"user": "string", "role": "string", "type": "string", "level": "string"},
    "updateStrategy": {"type": "string", "rollingUpdate": "object"},
}
BEGIN, END = "<!-- values: made from values.yaml -->\n", "<!-- /values -->\n"


@dataclass
class Value:
    """One value: its dotted name, default, what the comment says, and further schema keywords."""

    name: str
    default: Any
    text: str
    keywords: dict[str, Any] = field(default_factory=dict)


class UndocumentedError(ValueError):
    """A value without a comment."""


def read(text: str) -> list[Value]:
    """All values in order. A mapping that isn't empty and has no comment of its own is a group, not a value."""
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, "", text.splitlines()))


def _walk(node: yaml.MappingNode, prefix: str, lines: list[str]) -> list[Value]:
    found = []
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        comment, keywords = _comment(lines, key.start_mark.line)
        if comment:
            default = yaml.safe_load(yaml.serialize(value))
            found.append(Value(name, default, comment, keywords))
        elif isinstance(value, yaml.MappingNode) and value.value:
            found += _walk(value, f"{name}.", lines)
        else:
            raise UndocumentedError(f"values.yaml: {name} has no comment that starts with '# --'")
    return found


def _comment(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    texts: list[str] = []
    keywords: dict[str, Any] = {}
    for above in reversed(lines[:line]):
        stripped = above.strip()
        if stripped.startswith("# @schema "):
            keywords = json.loads(stripped.removeprefix("# @schema "))
        elif stripped.startswith("#"):
            texts.insert(0, stripped.removeprefix("#").strip())
            if stripped.startswith("# --"):
                return " ".join(texts).removeprefix("--").strip(), keywords
        else:
            break
    return "", {}


def schema(values: list[Value]) -> dict[str, Any]:
    """JSON Schema (draft 7) that knows exactly these values."""
    root = _object("Values of the chart kai-resource-isolator")
    root["$schema"] = "http://json-schema.org/draft-07/schema#"
    for value in values:
        *groups, leaf = value.name.split(".")
        level = root
        for group in groups:
            level = level["properties"].setdefault(group, _object())
        level["properties"][leaf] = {
            "description": value.text,
            **_type(value.default),
            **_fields(leaf),
            **value.keywords,
        }
    # Helm drops a key that somebody sets to null; without these, a template would fail somewhere.
    root["required"] = [name for name, level in root["properties"].items() if {"properties", "enum"} & level.keys()]
    # Helm gives a subchart's `global` more keys than ours.
    root["properties"]["global"]["additionalProperties"] = True
    return root


def _object(title: str = "") -> dict[str, Any]:
    own: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    return {"title": title, **own} if title else own


def _type(default: Any) -> dict[str, Any]:
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return {"type": names[type(default)]} if type(default) in names else {}


def _fields(leaf: str) -> dict[str, Any]:
    if leaf not in OBJECTS:
        return {}
    return {
        "properties": {name: {"type": kind} for name, kind in OBJECTS[leaf].items()},
        "additionalProperties": False,
    }


def table(values: list[Value]) -> str:
    """README's table."""
    lines = ["| value | default | what it does |", "|---|---|---|"]
    for value in values:
        allowed = value.keywords.get("enum")
        text = value.text + (f" One of {', '.join(f'`{item}`' for item in allowed)}." if allowed else "")
        default = json.dumps(value.default, separators=(", ", ": "))
        lines.append(f"| `{value.name}` | `{default}` | {text} |")
    return "\n".join(lines) + "\n"


def with_table(readme: str, values: list[Value]) -> str:
    """README with the table between its marks."""
    return re.sub(
        f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: BEGIN + table(values) + END, readme, flags=re.DOTALL
    )


def schema_text(values: list[Value]) -> str:
    """The schema's file."""
    return json.dumps(schema(values), indent=2) + "\n"


def main() -> None:
    """Write both files."""
    values = read(VALUES.read_text())
    SCHEMA.write_text(schema_text(values))
    README.write_text(with_table(README.read_text(), values))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("python -m tests.chart.values --write")
    main()
