"""What the chart says and what the parts say are the same names, flags and paths."""

import re
from pathlib import Path

import yaml

from libsync import config as libsync_config
from libsync.presets import PRESETS
from monitor import config as monitor_config
from webhook import config as webhook_config
from webhook import names

CHART = Path(__file__).resolve().parents[2] / "chart"


def _template(name: str) -> str:
    return (CHART / "templates" / f"{name}.yaml").read_text()


def _flags(template: str) -> set[str]:
    return set(re.findall(r"^ +- (--[a-z-]+)=", template, re.MULTILINE))


def test_webhook_is_started_with_flags_that_it_knows() -> None:
    flags = _flags(_template("webhook-deployment"))
    assert {"--listen", "--opt-out", "--tls-secret", "--library-base"} <= flags
    assert flags <= set(webhook_config._parser()._option_string_actions)


def test_every_rule_of_the_webhook_is_a_value_of_the_chart() -> None:
    """A setting that decides about pods and can't be reached by helm would be lost to most users."""
    rules = {"--" + name.replace("_", "-") for name in webhook_config.Rules.__dataclass_fields__}
    assert rules <= _flags(_template("webhook-deployment"))


def test_monitor_is_started_with_flags_that_it_knows() -> None:
    flags = _flags(_template("monitor-daemonset"))
    assert {"--listen", "--kubelet-root", "--user"} <= flags
    assert flags <= {f"--{flag}" for flag, *_ in monitor_config.OPTIONS}


def test_libsync_is_started_with_flags_that_it_knows() -> None:
    flags = _flags(_template("libsync-daemonset"))
    assert {"--target", "--preset", "--ready-file"} <= flags
    assert flags <= set(libsync_config._parser()._option_string_actions)


def test_presets_name_the_folders_that_libsync_does() -> None:
    presets = yaml.safe_load((CHART / "files" / "presets.yaml").read_text())
    assert {name: preset["library"] for name, preset in presets.items()} == {
        name: preset.base for name, preset in PRESETS.items()
    }


def test_presets_all_say_the_same_things() -> None:
    presets = yaml.safe_load((CHART / "files" / "presets.yaml").read_text())
    assert len({frozenset(preset) for preset in presets.values()}) == 1


def test_policy_looks_for_what_the_webhook_puts_in() -> None:
    policy = _template("webhook-policy-injected")
    for volume, path in (
        (names.LIBRARY_VOLUME, names.LIBRARY_DIR),
        (names.PRELOAD_VOLUME, names.PRELOAD_FILE),
        (names.REGION_VOLUME, names.REGION_DIR),
        (names.QUOTA_VOLUME, names.QUOTA_DIR),
    ):
        assert f"['{volume}', '{path}']" in policy


def test_policies_keep_every_annotation_that_decides_a_share() -> None:
    for policy in ("webhook-policy-annotations", "webhook-policy-bindings"):
        text = _template(policy)
        for key in (names.GPU_MEMORY, names.GPU_FRACTION, names.GPU_CONTAINER, names.GPU_DEVICES, names.INJECT):
            assert f"'{key}'" in text, (policy, key)
