"""What README says of values and kinds of nodes is so."""

import re

import yaml

from tests.chart.values import CHART, README, VALUES, read


def test_every_value_that_the_text_names_exists() -> None:
    known = {value.name for value in read(VALUES.read_text())}
    groups = {name.partition(".")[0] for name in known} - {"global"}  # every chart has those
    # As code (`tls.certManager.enabled=true`) or as an argument of helm (--set monitor.runtimeClassName=).
    found = re.findall(r"(?:`|--set )([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)*)(?=[=`])", README.read_text())
    named = {name for name in found if name.partition(".")[0] in groups and ("." in name or name in known)}
    assert len(named) > 15
    assert named <= known, named - known


def test_table_of_presets_says_what_the_presets_are() -> None:
    presets = yaml.safe_load((CHART / "files" / "presets.yaml").read_text())
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| `(/[^`]+)` \|", README.read_text(), re.MULTILINE))
    assert rows == {name: preset["library"] for name, preset in presets.items()}


def test_commands_are_marked_as_needing_a_cluster() -> None:
    """Whatever is no cluster's would have to be run by a test."""
    blocks = re.findall(r"^ *```sh\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    assert all(block.lstrip().startswith("# needs a cluster") for block in blocks)
