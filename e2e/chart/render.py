"""Renders the chart with helm."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "chart"
RELEASE = "kai-resource-isolator"
PROMETHEUS = "--api-versions=monitoring.coreos.com/v1"

Object = dict[str, Any]


class RefusedError(Exception):
    """helm refused the values; the text is what a user reads."""


class Rendered:
    """The objects of one rendering, found by kind and the end of their name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [document for document in yaml.safe_load_all(text) if document]

    def all(self, kind: str) -> list[Object]:
        """Every object of a kind."""
        return [document for document in self.objects if document["kind"] == kind]

    def one(self, kind: str, ending: str = "") -> Object:
        """The one object of a kind whose name ends so."""
        found = [document for document in self.all(kind) if document["metadata"]["name"].endswith(ending)]
        assert len(found) == 1, f"{len(found)} {kind} *{ending}"
        return found[0]

    def pods(self) -> dict[str, Object]:
        """Pod specifications of all workloads by their component."""
        kinds = ("Deployment", "DaemonSet")
        return {
            document["metadata"]["labels"]["app.kubernetes.io/component"]: document["spec"]["template"]["spec"]
            for kind in kinds
            for document in self.all(kind)
        }


def render(settings: Settings, *arguments: str, release: str = RELEASE, namespace: str = RELEASE) -> Rendered:
    """`helm template` with these arguments. Raises RefusedError."""
    command = [str(settings.programs / "helm"), "template", release, str(CHART), "--namespace", namespace, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RefusedError(done.stderr)
    return Rendered(done.stdout)
