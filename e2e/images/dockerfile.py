"""Reads the part of the Dockerfile language that ours use; anything else is refused rather than ignored."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class DockerfileError(ValueError):
    """The file says something that isn't understood here."""


@dataclass(frozen=True)
class Run:
    """A shell command."""

    command: str


@dataclass(frozen=True)
class Copy:
    """Files from the context, or from another stage, to a path."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""


@dataclass
class Stage:
    """One FROM: its base (an image or an earlier stage), what is done, and the configuration it ends with."""

    base: str
    name: str
    steps: list[Run | Copy] = field(default_factory=list)
    # Working directory and environment at each step: the position in `steps` at which they begin to hold.
    directories: list[tuple[int, str]] = field(default_factory=list)
    environment: list[tuple[int, str, str]] = field(default_factory=list)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)

    def directory(self, step: int) -> str:
        """The working directory at a step."""
        return next((path for begin, path in reversed(self.directories) if begin <= step), "/")

    def variables(self, step: int) -> dict[str, str]:
        """The environment at a step."""
        return {name: value for begin, name, value in self.environment if begin <= step}


def parse(path: Path, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages in order. `arguments` stand for --build-arg."""
    known = {"BUILDPLATFORM": "linux/amd64", **(arguments or {})}
    stages: list[Stage] = []
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word:
            continue
        if word == "ARG":
            name, _, default = rest.partition("=")
            known.setdefault(name, default)
        elif word == "FROM":
            stages.append(_from(_expand(rest, known)))
        elif not stages:
            raise DockerfileError(f"{path.name}: {word} before the first FROM")
        else:
            _instruction(path, stages[-1], word, rest)
    return stages


def _from(text: str) -> Stage:
    words = [word for word in text.split() if not word.startswith("--platform=")]
    return Stage(base=words[0], name=words[2] if len(words) == 3 and words[1].upper() == "AS" else "")


def _instruction(path: Path, stage: Stage, word: str, rest: str) -> None:
    step = len(stage.steps)
    if word == "RUN":
        stage.steps.append(Run(rest))
    elif word == "COPY":
        words = rest.split()
        origin = [item.removeprefix("--from=") for item in words if item.startswith("--from=")]
        files = [item for item in words if not item.startswith("--")]
        if len(files) < 2 or len(words) - len(files) != len(origin):
            raise DockerfileError(f"{path.name}: COPY {rest}: only --from is understood")
        stage.steps.append(Copy(tuple(files[:-1]), files[-1], origin[0] if origin else ""))
    elif word == "WORKDIR":
        stage.directories.append((step, rest))
    elif word == "ENV":
        stage.environment += [(step, *item.split("=", 1)) for item in shlex.split(rest)]  # type: ignore[misc]
    elif word == "USER":
        stage.user = rest
    elif word == "ENTRYPOINT":
        stage.entrypoint = json.loads(rest)
    elif word != "EXPOSE":
        raise DockerfileError(f"{path.name}: {word} isn't understood here")


def _expand(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise DockerfileError(f"no ARG gives {match[1]}")
        return known[match[1]]

    return re.sub(r"\$\{(\w+)\}", value, text)
