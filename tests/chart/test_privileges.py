"""Whatever a component may do beyond an ordinary pod is explained where the manifest says it."""

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).resolve().parents[2] / "chart" / "templates"
# Root, capabilities, SELinux types, the host's namespaces and folders, credentials, and each rule of a role.
_FIELDS = (
    r"privileged: true",
    r"runAsUser: 0\b",
    r"capabilities: .*add:",
    r"seLinuxOptions:",
    r"host(?:PID|IPC|Network): true",
    r"hostPath:",
    r"automountServiceAccountToken: true",
    r"apiGroups: \[[^\]]*\]\n *resources:",
)
PRIVILEGE = re.compile(rf"^ *(?:- )*(?:name: \w+\n *)?(?:{'|'.join(_FIELDS)})", re.MULTILINE)


def unexplained(template: str) -> list[str]:
    """The privileges of a template without a comment, on the line or right above it (templates' own lines between)."""
    lines = template.splitlines()
    found = []
    for hit in PRIVILEGE.finditer(template):
        number = template.count("\n", 0, hit.start())
        above = [line.strip() for line in lines[:number] if not line.strip().startswith("{{")]
        if "#" not in lines[number] and not (above and above[-1].startswith("#")):
            found.append(hit[0].strip())
    return found


@pytest.mark.parametrize("file", sorted(TEMPLATES.glob("*.yaml")), ids=lambda file: str(file.stem))
def test_each_privilege_has_its_reason_beside_it(file: Path) -> None:
    if "-policy-" not in file.stem and "mutating" not in file.stem:  # these ask for nothing, they are rules
        assert unexplained(file.read_text()) == []


def test_a_privilege_without_a_reason_is_found() -> None:
    text = "spec:\n  hostPID: true\n  # why\n  hostNetwork: true\nrules:\n  - apiGroups: [x]\n    resources: [y]\n"
    assert unexplained(text) == ["hostPID: true", "- apiGroups: [x]\n    resources:"]


def test_the_privileges_that_there_are_are_seen() -> None:
    monitor = (TEMPLATES / "monitor-daemonset.yaml").read_text()
    assert len(PRIVILEGE.findall(monitor)) >= 7
