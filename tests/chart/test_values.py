"""values.yaml, its schema and README's table say the same."""

import json
import re
from typing import Any

import pytest

from tests.chart.values import END, README, SCHEMA, VALUES, UndocumentedError, read, schema, schema_text, with_table

# What values files written for the reference chart name.
KNOWN = (
    "global.imageRegistry",
    "global.imagePullSecrets",
    *(f"librarySync.{name}" for name in ("nodeSelector", "tolerations", "resources", "priorityClassName")),
    *(
        f"monitor.{name}"
        for name in ("enabled", "nodeSelector", "runtimeClassName", "resyncInterval", "updateInterval")
    ),
    *(f"monitor.{name}" for name in ("metricsPort", "legacyMetrics", "resources", "podLabels", "podAnnotations")),
    *(f"monitor.serviceMonitor.{name}" for name in ("enabled", "interval", "scrapeTimeout", "labels")),
    *(f"webhook.podDisruptionBudget.{name}" for name in ("minAvailable", "maxUnavailable")),
    *(f"webhook.{name}" for name in ("replicaCount", "resources", "failurePolicy", "nodeSelector", "tolerations")),
    "tls.certManager.enabled",
    "rbac.create",
)


def test_every_value_has_a_comment() -> None:
    assert len(read(VALUES.read_text())) > 100


def test_a_value_without_a_comment_is_found() -> None:
    with pytest.raises(UndocumentedError, match=r"webhook\.port has no comment"):
        read("webhook:\n  # -- Replicas.\n  replicas: 2\n  port: 1\n")


def test_schema_is_made_from_the_values() -> None:
    assert SCHEMA.read_text() == schema_text(read(VALUES.read_text())), "python -m tests.chart.values --write"


def test_readme_table_is_made_from_the_values() -> None:
    text = README.read_text()
    assert END in text
    assert text == with_table(text, read(VALUES.read_text())), "python -m tests.chart.values --write"


def test_users_of_the_reference_chart_find_their_values() -> None:
    values = {value.name: value for value in read(VALUES.read_text())}
    assert {name for name in KNOWN if name not in values} == set()
    assert any(name.startswith("paths.") for name in values)
    # There an interval is a text with a unit.
    interval = values["monitor.updateInterval"].keywords
    assert "string" in interval["type"]
    assert re.search(interval["pattern"], "5s")
    assert "string" in values["monitor.resyncInterval"].keywords["type"]


def test_schema_refuses_a_mistyped_name_on_every_level() -> None:
    """Except below `global`, where a parent chart has names of its own: templates/validation.yaml looks at those."""

    def walk(level: dict[str, Any], name: str) -> None:
        if "properties" in level and name != "global":
            assert level["additionalProperties"] is False, name
        for key, below in level.get("properties", {}).items():
            walk(below, key)

    walk(json.loads(SCHEMA.read_text()), "values")


def test_values_with_few_choices_name_them() -> None:
    found = {value.name: value.keywords["enum"] for value in read(VALUES.read_text()) if "enum" in value.keywords}
    assert found["webhook.failurePolicy"] == ["Fail", "Ignore"]
    made = schema(read(VALUES.read_text()))
    assert made["properties"]["webhook"]["properties"]["failurePolicy"]["enum"] == ["Fail", "Ignore"]
