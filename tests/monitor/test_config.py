"""Flags and their environment twins mean the same, and a wrong value is named."""

from pathlib import Path

import pytest

from monitor.config import OPTIONS, PREFIX, parse


def test_defaults_are_a_nodes() -> None:
    settings = parse([], {})
    assert (settings.host, settings.port) == ("0.0.0.0", 9394)  # noqa: S104 (a pod's port)
    assert settings.kubelet_root == Path("/var/lib/kubelet")
    assert not settings.legacy_metrics
    assert settings.user is None


VALUES = {
    "listen": "127.0.0.1:1", "kubelet-root": "/k", "proc": "/p", "pods": "none",
    "api-server": "http://a", "pods-file": "/f", "node-name": "n",
    "map-by": "mount", "legacy-metrics": "true", "interval": "1", "grace": "2", "deadline": "3", "slack-mib": "4",
    "user": "65534", "events": "false", "log-level": "debug",
}  # fmt: skip


def test_each_flag_has_an_environment_twin() -> None:
    assert {flag for flag, *_ in OPTIONS} == set(VALUES)
    flags = [part for flag, text in VALUES.items() for part in (f"--{flag}", text)]
    environment = {PREFIX + flag.replace("-", "_").upper(): text for flag, text in VALUES.items()}
    assert parse(flags, {}) == parse([], environment)
    assert parse(flags, {}) != parse([], {})


def test_a_flag_beats_its_twin() -> None:
    assert parse(["--listen", "127.0.0.1:1"], {"KRI_MONITOR_LISTEN": "127.0.0.1:2"}).port == 1


def test_a_switch_needs_no_value() -> None:
    assert parse(["--legacy-metrics"], {}).legacy_metrics


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (["--listen", "9394"], {}, ["--listen", "HOST:PORT"]),
        (["--listen", "x:99999"], {}, ["--listen", "HOST:PORT"]),
        ([], {"KRI_MONITOR_INTERVAL": "often"}, ["KRI_MONITOR_INTERVAL", "often"]),
        (["--grace", "-1"], {}, ["--grace", "-1"]),
        (["--map-by", "name"], {}, ["--map-by", "cgroup"]),
        (["--user", "nobody"], {}, ["--user", "numeric"]),
        (["--legacy-metrics", "maybe"], {}, ["--legacy-metrics", "maybe"]),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ["--node-name", "KRI_MONITOR_NODE_NAME"]),
        (["--pods", "api"], {}, ["--api-server"]),
        (["--api-server", "10.0.0.1"], {}, ["--api-server", "https://"]),
    ],
)
def test_a_wrong_value_is_named(
    flags: list[str], environment: dict[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(flags, environment)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


def test_inside_a_cluster_the_api_server_names_pods_and_control_groups_match_processes() -> None:
    settings = parse(["--node-name", "n"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (settings.api_server, settings.map_by_mount) == ("https://10.0.0.1:443", False)
    settings = parse(["--pods-file", "/f"], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (settings.api_server, settings.map_by_mount) == ("", True)


def test_an_address_may_be_ipv6() -> None:
    assert parse(["--listen", "[::1]:9394"], {}).host == "::1"


def test_a_cluster_may_have_ipv6_addresses() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert parse(["--node-name", "n"], environment).api_server == "https://[fd00::1]:6443"
