"""A container's environment as kubelet makes it: envFrom, then env in order; `$(NAME)` means what came before it."""

import re
from collections.abc import Mapping
from typing import Any

from e2e.onebox.payload import read_field

# What an image usually brings; the pod's own entries replace it.
IMAGE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


class ContainerConfigError(Exception):
    """The container can't be made (kubelet: CreateContainerConfigError)."""


def resolve(
    container: Mapping[str, Any], pod: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The environment that the spec gives the container; ContainerConfigError where a required source is absent."""
    given: dict[str, str] = {}
    for source in container.get("envFrom", []):
        reference = source.get("configMapRef")
        if reference is None:
            raise ContainerConfigError(f"envFrom: {', '.join(source)} is not a source that this runner has")
        data = config_maps.get(reference["name"])
        if data is None and not reference.get("optional", False):
            raise ContainerConfigError(f'configmap "{reference["name"]}" not found')
        given |= {source.get("prefix", "") + key: value for key, value in (data or {}).items()}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            value = _look_up(entry["valueFrom"], pod, config_maps)
            if value is not None:
                given[entry["name"]] = value
        else:
            given[entry["name"]] = expand(entry.get("value", ""), given)
    return IMAGE | {"HOSTNAME": pod["metadata"]["name"]} | given


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace $(NAME) by what is known; an unknown one stays, $$ is a $."""
    return _REFERENCE.sub(lambda hit: "$" if hit[0] == "$$" else known.get(hit[1], hit[0]), text)


def _look_up(
    source: Mapping[str, Any], pod: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> str | None:
    if "fieldRef" in source:
        return read_field(pod, source["fieldRef"]["fieldPath"])
    reference = source.get("configMapKeyRef")
    if reference is None:
        raise ContainerConfigError(f"valueFrom: {', '.join(source)} is not a source that this runner has")
    data = config_maps.get(reference["name"])
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional", False):
        return None
    missing = f'configmap "{reference["name"]}" not found' if data is None else f"couldn't find key {reference['key']}"
    raise ContainerConfigError(missing)
