"""Settings: the only module that reads the environment. Every flag has a twin KRI_WEBHOOK_<FLAG>; the flag wins."""

# ruff: noqa: RUF009 (_setting is dataclasses.field with our metadata)

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

ENV_PREFIX = "KRI_WEBHOOK_"
DEFAULT_LIBRARY_BASE = "/var/lib/kai-resource-isolator"


class SettingsError(ValueError):
    """A setting is wrong: the message names it, its value and what is allowed."""


class OptOut(StrEnum):
    """Who may opt out of enforcement."""

    EVERYONE = "everyone"
    NAMESPACES = "namespaces"
    NOBODY = "nobody"


class OtherContainers(StrEnum):
    """What is done to the containers beside the share's own."""

    IGNORE = "ignore"
    HIDE_GPU = "hide-gpu"


class Bypass(StrEnum):
    """What is done about privileges with which a container can get round the limit."""

    WARN = "warn"
    DENY = "deny"
    IGNORE = "ignore"


class PodSecurity(StrEnum):
    """What is done about namespaces that enforce Pod Security baseline or restricted."""

    DENY = "deny"
    IGNORE = "ignore"


class Cluster(StrEnum):
    """Where the API server is."""

    NONE = "none"
    IN_CLUSTER = "in-cluster"
    KUBECONFIG = "kubeconfig"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: str) -> Address:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:]+)\]|([^:\[\]]*)):([0-9]{1,5})", value)
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004 (ports)
        raise ValueError("must be HOST:PORT, for example 0.0.0.0:8443")
    return Address(match[1] or match[2] or "0.0.0.0", int(match[3]))  # noqa: S104 (asked for by leaving it out)


def _optional_address(value: str) -> Address | None:
    return _address(value) if value else None


def _path(value: str) -> Path | None:
    return Path(value) if value else None


def _host_directory(value: str) -> str:
    if not value.startswith("/") or os.path.normpath(value) != value or value == "/" or ".." in value:
        raise ValueError("must be a clean absolute path, for example " + DEFAULT_LIBRARY_BASE)
    return value


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _switch(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", value) or not least <= int(value) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(value)

    return parse


def _seconds(least: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", value)
        factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
        seconds = float(match[1]) * factor[match[2] or "s"] if match else -1.0
        if seconds < least:
            raise ValueError(f"must be a time of at least {least:g}s such as 10s, 5m, 24h or 90d")
        return seconds

    return parse


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(value: str) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(kind)}") from None

    return parse


def _setting(default: str, parse: Callable[[str], Any], text: str) -> Any:
    return field(metadata={"default": default, "parse": parse, "help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decides about pods."""

    library_base: str = _setting(DEFAULT_LIBRARY_BASE, _host_directory, "directory on the nodes that libsync fills")
    schedulers: tuple[str, ...] = _setting("", _words, "names of schedulers whose pods are taken (empty: all)")
    opt_out: OptOut = _setting(
        "everyone", _choice(OptOut), "who may opt out of enforcement: everyone, namespaces or nobody"
    )
    opt_out_namespaces: tuple[str, ...] = _setting("", _words, "with --opt-out namespaces: their names")
    other_containers: OtherContainers = _setting(
        "ignore", _choice(OtherContainers), "containers beside the share's own: ignore, or hide-gpu from them"
    )
    bypass: Bypass = _setting(
        "warn",
        _choice(Bypass),
        "a share's container with means to get round the limit (privileged, SYS_ADMIN, SYS_PTRACE, SYS_CHROOT, "
        "hostPID, the library's host directory writable, a writable volume over /etc, /usr or /usr/local): warn, deny "
        "or ignore",
    )
    pod_security: PodSecurity = _setting(
        "deny",
        _choice(PodSecurity),
        "namespaces that enforce Pod Security baseline or restricted: deny with the remedy, or ignore (where the "
        "API server exempts them)",
    )
    seccomp_runtime_default: bool = _setting(
        "false", _switch, "give the share's container seccomp profile RuntimeDefault where the pod has none"
    )
    sandboxed_runtime_classes: tuple[str, ...] = _setting(
        "kata,kata-*,gvisor,runsc", _words, "runtime classes (with * and ?) in which a share can't be enforced"
    )

    def check(self) -> None:
        """Raise SettingsError for values that don't go together."""
        if (self.opt_out is OptOut.NAMESPACES) != bool(self.opt_out_namespaces):
            raise SettingsError("--opt-out namespaces and --opt-out-namespaces belong together: give both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the webhook is served."""

    listen: Address = _setting("0.0.0.0:8443", _address, "HOST:PORT of the webhook, TLS")
    ops_listen: Address | None = _setting(
        "", _optional_address, "HOST:PORT of a second, plain listener for /healthz, /readyz and /metrics (empty: none)"
    )
    threads: int = _setting("2", _whole(1, 64), "threads that answer reviews above 64 KiB")
    max_connections: int = _setting("1000", _whole(8, 20000), "open connections; past that the longest idle is closed")
    max_body_bytes: int = _setting(str(3 << 20), _whole(1024, 64 << 20), "largest body of a request")
    read_timeout: float = _setting("5s", _seconds(0.05), "time for TLS handshake and a whole request")
    keepalive: float = _setting("120s", _seconds(0), "time that an idle connection stays open")
    drain: float = _setting("5s", _seconds(0), "time after SIGTERM in which requests are still taken")
    log_level: str = _setting("info", str.lower, "debug, info, warning or error")

    def check(self) -> None:
        """Raise SettingsError for values that don't go together."""
        if self.ops_listen is not None and self.ops_listen.port == self.listen.port:
            raise SettingsError("--ops-listen needs another port than --listen")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise SettingsError(f"--log-level: {self.log_level!r} must be debug, info, warning or error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Where the serving certificate comes from: two files that somebody else keeps, or a Secret kept by itself."""

    tls_cert: Path | None = _setting("", _path, "certificate chain (PEM), followed when it changes")
    tls_key: Path | None = _setting("", _path, "its key (PEM)")
    client_ca: Path | None = _setting("", _path, "mutual TLS: CA (PEM) of the API server's client certificate")
    client_names: tuple[str, ...] = _setting(
        "", _words, "mutual TLS: common names that are let in (empty: any certificate of that CA)"
    )
    cluster: Cluster = _setting(
        "none", _choice(Cluster), "the API server: none, in-cluster (service account) or kubeconfig (KUBECONFIG)"
    )
    tls_secret: str = _setting("", str, "without --tls-cert: name of the Secret in which the webhook keeps its own CA")
    namespace: str = _setting("", str, "namespace of the Secret and the Service")
    service: str = _setting("", str, "name of the Service that the API server calls")
    server_names: tuple[str, ...] = _setting("", _words, "further DNS names or addresses for the own certificate")
    webhook_configuration: str = _setting("", str, "name of the MutatingWebhookConfiguration whose caBundle is kept")
    ca_lifetime: float = _setting("3650d", _seconds(1), "lifetime of the own CA")
    certificate_lifetime: float = _setting("90d", _seconds(1), "lifetime of the own serving certificate")
    certificate_check: float = _setting("10s", _seconds(0.05), "time between looks at certificate, Secret and caBundle")

    @property
    def own(self) -> bool:
        """Whether the webhook makes its own certificates."""
        return bool(self.tls_secret)

    def check(self) -> None:
        """Raise SettingsError for values that don't go together."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key belong together: give both")
        if self.own == (self.tls_cert is not None):
            raise SettingsError("give either --tls-cert and --tls-key, or --tls-secret for certificates of its own")
        if self.own and self.cluster is Cluster.NONE:
            raise SettingsError("--tls-secret needs the API server: --cluster in-cluster or kubeconfig")
        if self.own and not (self.namespace and self.service and self.webhook_configuration):
            raise SettingsError("--tls-secret needs --namespace, --service and --webhook-configuration too")
        if self.client_names and self.client_ca is None:
            raise SettingsError("--client-names needs --client-ca")
        if self.certificate_lifetime * 3 > self.ca_lifetime:
            raise SettingsError("--ca-lifetime must be at least three times --certificate-lifetime")
        if self.certificate_check * 10 > self.certificate_lifetime:
            raise SettingsError("--certificate-check must be at most a tenth of --certificate-lifetime")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything, checked."""

    rules: Rules
    server: Server
    tls: Tls


_GROUPS = (("serving", Server), ("certificates", Tls), ("rules for pods", Rules))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook",
        description="Admission webhook that gives pods with a share of a GPU the library that enforces it. "
        f"Every option can also be given as environment variable {ENV_PREFIX}<OPTION> (--tls-cert: "
        f"{ENV_PREFIX}TLS_CERT).",
    )
    for title, kind in _GROUPS:
        group = parser.add_argument_group(title)
        for one in fields(kind):
            default = one.metadata["default"]
            shown = f" (default: {default})" if default else ""
            group.add_argument("--" + one.name.replace("_", "-"), metavar="X", help=one.metadata["help"] + shown)
    return parser


def load(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from flags and environment. Raises SettingsError; exits only for --help and unknown flags."""
    environ = os.environ if environ is None else environ
    given = vars(_parser().parse_args(arguments))
    made: dict[type[Any], Any] = {}
    for _, kind in _GROUPS:
        made[kind] = kind(**{one.name: _value(one.name, one.metadata, given, environ) for one in fields(kind)})
    unknown = sorted(set(_twins(environ)) - {f"{ENV_PREFIX}{name.upper()}" for name in given})
    if unknown:
        raise SettingsError(f"environment variable {unknown[0]} is no setting of the webhook (see --help)")
    for kind in made.values():
        kind.check()
    return Settings(made[Rules], made[Server], made[Tls])


def _twins(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ if name.startswith(ENV_PREFIX)]


def _value(name: str, metadata: Mapping[str, Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    source, value = "--" + name.replace("_", "-"), given[name]
    if value is None and f"{ENV_PREFIX}{name.upper()}" in environ:
        source, value = f"{ENV_PREFIX}{name.upper()}", environ[f"{ENV_PREFIX}{name.upper()}"]
    if value is None:
        value = metadata["default"]
    try:
        return metadata["parse"](value)
    except ValueError as error:
        raise SettingsError(f"{source}: {value!r} {error}") from None
