"""Settings of the monitor: each a flag and a variable KRI_MONITOR_<FLAG>. Nobody else reads the environment."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "KRI_MONITOR_"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the exporter and its reader are told. Times in seconds."""

    host: str
    port: int
    kubelet_root: Path
    proc: Path
    pods_file: Path | None
    api_server: str  # empty: none
    node_name: str
    map_by_mount: bool
    legacy_metrics: bool
    interval: float
    grace: float
    deadline: float
    slack_mib: int
    user: int | None
    events: bool
    log_level: str


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:  # noqa: PLR2004 (ports)
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9394 or [::]:9394")
    return host.strip("[]"), int(port)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 < value <= 86400:  # noqa: PLR2004 (a day)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and 86400")
    return value


def _url(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} doesn't start with http:// or https://")
    return text


def _own_cluster(environment: Mapping[str, str]) -> str:
    """The API server as the kubelet names it to every pod; empty outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if host and ":" in host else f"https://{host}:{port}" if host else ""


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


# flag, default, how the text is read, help
OPTIONS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("listen", "0.0.0.0:9394", _address, "HOST:PORT for /metrics, /evidence and /healthz"),
    ("kubelet-root", "/var/lib/kubelet", Path, "the kubelet's directory; regions are below its pods/"),
    ("proc", "/proc", Path, "the host's proc filesystem, in which NVML's pids mean something"),
    (
        "pods",
        "auto",
        _choice("auto", "api", "none"),
        "where names come from: api, none, or auto: the API server, inside a pod",
    ),
    ("api-server", "", _url, "address of the API server, if not the pod's own cluster's (`kubectl proxy` serves one)"),
    ("pods-file", "", str, "a v1 PodList as JSON instead of the API server"),
    ("node-name", "", str, "this node's name: its pods are watched (needed with the API server)"),
    (
        "map-by",
        "auto",
        _choice("auto", "cgroup", "mount"),
        "how processes are matched to containers: cgroup; mount too, "
        "for pods without control groups (needs the right to trace them); auto: mount where no API server is used",
    ),
    ("legacy-metrics", "false", _switch, "true: HAMi's older metric names as well"),
    ("interval", "5", _seconds, "seconds between updates when nobody scrapes"),
    ("grace", "10", _seconds, "seconds that card and ledger may disagree before it counts"),
    ("deadline", "2", _seconds, "seconds after which a source that hangs is left out of an update"),
    ("slack-mib", "64", _count, "MiB by which card and ledger may disagree (contexts are estimated on some cards)"),
    (
        "user",
        "",
        str,
        "numeric user to serve HTTP as when started as root; the reader then stays root without "
        "capabilities (65534 in the chart)",
    ),
    ("events", "true", _switch, "true: write an Event on a pod whose enforcement turns bad"),
    ("log-level", "info", _choice("debug", "info", "warning", "error"), "what is logged"),
)


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read flags and, where a flag is missing, the environment. Exits with a message for a wrong value."""
    parser = argparse.ArgumentParser(
        prog="python -m monitor",
        description="Exports what was promised, enforced and really used on this node's GPUs. "
        "`python -m monitor top` shows it in the terminal.",
        epilog="Each flag has an environment variable: --kubelet-root is KRI_MONITOR_KUBELET_ROOT.",
    )
    for flag, default, read, text in OPTIONS:
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if read is _switch else {}
        parser.add_argument(f"--{flag}", metavar="VALUE", help=f"{text} (default: {default or 'none'})", **switch)
    given = parser.parse_args(arguments)
    values: dict[str, Any] = {}
    for flag, default, read, _ in OPTIONS:
        key = flag.replace("-", "_")
        variable = PREFIX + key.upper()
        text = getattr(given, key)
        where = f"--{flag}"
        if text is None and environment.get(variable):
            text, where = environment[variable], variable
        try:
            values[key] = read(default if text is None else text)
        except argparse.ArgumentTypeError as e:
            parser.error(f"{where}: {e}")
    user = values["user"]
    if user and not user.isdecimal():
        parser.error(f"--user: {user!r} is not a numeric user id")
    pods_file = Path(values["pods_file"]) if values["pods_file"] else None
    api_server = ""
    if pods_file is None and values["pods"] != "none":
        api_server = values["api_server"] or _own_cluster(environment)
    if values["pods"] == "api" and not api_server:
        parser.error("--pods api: this is no pod of a cluster, so --api-server must say where the API server is")
    if api_server and not values["node_name"]:
        parser.error(f"--node-name (or {PREFIX}NODE_NAME) is needed to watch this node's pods")
    return Settings(
        host=values["listen"][0],
        port=values["listen"][1],
        kubelet_root=values["kubelet_root"],
        proc=values["proc"],
        pods_file=pods_file,
        api_server=api_server,
        node_name=values["node_name"],
        map_by_mount=values["map_by"] == "mount" or (values["map_by"] == "auto" and not api_server),
        legacy_metrics=values["legacy_metrics"],
        interval=values["interval"],
        grace=values["grace"],
        deadline=values["deadline"],
        slack_mib=values["slack_mib"],
        user=int(user) if user else None,
        events=values["events"],
        log_level=values["log_level"],
    )
