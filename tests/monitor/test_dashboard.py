"""Alerts and dashboard ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from monitor import metrics
from monitor.states import STATES

FILES = Path(__file__).resolve().parents[2] / "chart" / "files"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
RULES = yaml.safe_load((FILES / "rules.yaml").read_text())
KNOWN = {metric.name: {*metric.labels, "node"} for metric in (*metrics.HAMI, *metrics.OWN)}
NAME = re.compile(r"\b((?:kai_isolator|hami)_\w+)(\{[^}]*\})?")
# Exported by the webhook, not by the monitor.
OTHERS = {"kai_isolator_webhook_ready", "kai_isolator_webhook_certificate_expiry_timestamp_seconds"}


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")


def test_every_query_names_metrics_that_are_exported_with_labels_that_they_have() -> None:
    seen = set()
    for query in queries():
        for name, selector in NAME.findall(query):
            if name in OTHERS:
                continue
            assert name in KNOWN, f"{name} in {query}"
            asked = set(re.findall(r"(\w+)\s*[=!]~?", selector))
            assert asked <= KNOWN[name], f"{name}{selector}"
            seen.add(name)
    assert len(seen) > 15


def test_every_state_that_a_query_names_is_one() -> None:
    for query in queries():
        for value in re.findall(r'state[!=]~?"([^"]+)"', query):
            assert set(value.split("|")) <= set(STATES), query


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, rule["alert"]
        assert all(len(text) > 20 for text in rule["annotations"].values()), rule["alert"]
        named = set(re.findall(r"kai_isolator_\w+|hami_\w+", " ".join(rule["annotations"].values())))
        assert named <= KNOWN.keys(), f"{rule['alert']} sends people to metrics that aren't there"
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_every_bad_state_has_an_alert() -> None:
    asked = " ".join(rule["expr"] for rule in rules())
    for state in STATES:
        assert (f"{state}" in asked) == (state not in {"unused", "enforced"}), state


def test_panels_dont_overlap_and_have_titles_and_a_datasource_of_the_users_choice() -> None:
    taken: set[tuple[int, int]] = set()
    ids = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        ids.add(panel["id"])
        assert panel["title"]
    assert len(ids) == len(DASHBOARD["panels"])
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}


def test_cluster_node_and_pod_each_have_a_row_whose_panels_ask_for_it() -> None:
    rows: dict[str, list[str]] = {}
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            asked = rows[panel["title"]] = []
        else:
            asked += [target["expr"] for target in panel["targets"]]
    assert list(rows) == ["Cluster", "Node $node", "Pod $namespace/$pod"]
    assert not any("$node" in query or "$pod" in query for query in rows["Cluster"])
    assert all('node=~"$node"' in query for query in rows["Node $node"])
    assert all('namespace=~"$namespace", pod=~"$pod"' in query for query in rows["Pod $namespace/$pod"])
