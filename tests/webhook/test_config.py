"""Settings come from flags and their twins in the environment, and from nowhere else."""

import dataclasses
import re
from pathlib import Path

import pytest

from webhook import config
from webhook.config import Address, SettingsError, load

FILES = ["--tls-cert", "a.pem", "--tls-key", "b.pem"]


def test_flag_beats_its_twin() -> None:
    environ = {"KRI_WEBHOOK_LISTEN": "0.0.0.0:1000", "KRI_WEBHOOK_TLS_CERT": "a", "KRI_WEBHOOK_TLS_KEY": "b"}
    assert load([], environ).server.listen.port == 1000
    assert load(["--listen", "127.0.0.1:2000"], environ).server.listen == Address("127.0.0.1", 2000)


@pytest.mark.parametrize("kind", [config.Rules, config.Server, config.Tls])
def test_every_default_is_valid(kind: type[config.Rules | config.Server | config.Tls]) -> None:
    for field in dataclasses.fields(kind):
        field.metadata["parse"](field.metadata["default"])


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("10", 10), ("1.5s", 1.5), ("5m", 300), ("2h", 7200)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert load([*FILES, "--keepalive", text], {}).server.keepalive == seconds


def test_ipv6_address_is_bracketed() -> None:
    assert str(load([*FILES, "--listen", "[::1]:8443"], {}).server.listen) == "[::1]:8443"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--listen", "localhost"),
        ("--listen", "0.0.0.0:99999"),
        ("--ops-listen", "0.0.0.0:8443"),
        ("--threads", "0"),
        ("--drain", "soon"),
        ("--max-body-bytes", "3Mi"),
        ("--library-base", "relative/path"),
        ("--library-base", "/opt/../etc"),
        ("--seccomp-runtime-default", "maybe"),
        ("--log-level", "loud"),
        ("--client-names", "kube-apiserver"),
        ("--ca-lifetime", "90d"),
        ("--certificate-check", "30d"),
    ],
)
def test_wrong_value_is_named(flag: str, value: str) -> None:
    with pytest.raises(SettingsError, match=flag):
        load([*FILES, flag, value], {})


def test_only_config_reads_the_environment() -> None:
    folder = Path(config.__file__).parent
    readers = {path.name for path in folder.glob("*.py") if re.search(r"os\.environ|getenv", path.read_text())}
    assert readers == {"config.py"}
