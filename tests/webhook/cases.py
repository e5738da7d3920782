"""The cases: one folder each, `pod.yaml` as it is posted and what must come out.

    pod.yaml       the pod
    given.yaml     settings by flag name, labels of the namespace (only where they matter)
    expected.yaml  decision, reason, sentences
    mutated.yaml   the whole pod after the patch (only where there is one)

`python -m tests.webhook.cases` writes the last two from what the code does, to be read as a diff before a commit.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from webhook import config, review
from webhook.pod import Object, Pod
from webhook.policy import Decision, decide

FOLDER = Path(__file__).with_name("cases")
NAMESPACE = "team"
CERTIFICATE = ["--tls-cert", "unused", "--tls-key", "unused"]


class Labels:
    """Namespaces that all have the same labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    def labels(self, name: str) -> dict[str, str]:
        return self._labels


@dataclass(frozen=True)
class Case:
    name: str
    pod: Object
    flags: dict[str, str]
    namespace_labels: dict[str, str]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def read(self, file: str) -> Any:
        path = self.folder / file
        return yaml.safe_load(path.read_text()) if path.exists() else None

    @cached_property
    def rules(self) -> config.Rules:
        arguments = [part for flag, value in self.flags.items() for part in ("--" + flag, value)]
        return config.load([*CERTIFICATE, *arguments], {}).rules

    def decide(self, pod: Object | None = None) -> Decision:
        return decide(Pod.read(self.pod if pod is None else pod), NAMESPACE, self.rules, Labels(self.namespace_labels))

    def files(self) -> set[str]:
        """Names of the files that a test of this case reads."""
        given = {"given.yaml"} if self.flags or self.namespace_labels else set()
        mutated = {"mutated.yaml"} if self.decide().operations else set()
        return {"pod.yaml", "expected.yaml"} | given | mutated


def load() -> list[Case]:
    return [_read(folder) for folder in sorted(FOLDER.iterdir())]


def _read(folder: Path) -> Case:
    given_file = folder / "given.yaml"
    given = yaml.safe_load(given_file.read_text()) if given_file.exists() else {}
    pod = yaml.safe_load((folder / "pod.yaml").read_text())
    return Case(folder.name, pod, given.get("settings", {}), given.get("namespace_labels", {}))


def outcome(decision: Decision) -> dict[str, object]:
    """Return what `expected.yaml` holds."""
    response = review.answer("uid", decision)["response"]
    found: dict[str, object] = {"decision": decision.reason.outcome.value, "reason": decision.reason.code}
    if decision.container:
        found["container"] = decision.container
    if "status" in response:
        found["status"] = dict(response["status"])
    if "warnings" in response:
        found["warnings"] = response["warnings"]
    return found


def mutate(pod: Object, decision: Decision) -> Object:
    """Apply the patch as a strict implementation of RFC 6902 does; the pod stays as it is."""
    patched: Object = jsonpatch.apply_patch(copy.deepcopy(pod), decision.operations)
    return patched


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _render(data: object) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def expectations(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the expected files of a case as the code has them now."""
    decision = case.decide()
    yield "expected.yaml", _render(outcome(decision))
    if decision.operations:
        yield "mutated.yaml", _render(mutate(case.pod, decision))


if __name__ == "__main__":
    for one in load():
        for file, text in expectations(one):
            (one.folder / file).write_text(text)
