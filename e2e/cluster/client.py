"""What can be done with any cluster: ours, or one that somebody brings along."""

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.settings import Settings

Object = dict[str, Any]


class Client(ABC):
    """An API server with its tools."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The administrator's."""

    @abstractmethod
    def run(
        self, arguments: Sequence[str], check: bool = True, stdin: str = "", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program where the cluster can be reached, and wait for it."""

    @abstractmethod
    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        user: str = "admin",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Object]:
        """One request to the API server: HTTP status and the object it answers (a Status where it refuses)."""

    def kubectl(self, *arguments: str, stdin: str = "", user: str = "admin", check: bool = True) -> str:
        """kubectl's standard output; with check=False its standard error behind it, whatever became of it."""
        kubeconfig = self.kubeconfig if user == "admin" else self.kubeconfig.with_name(f"{user}.kubeconfig")
        kubectl = [self.settings.tool("kubectl"), f"--kubeconfig={kubeconfig}"]
        done = self.run([*kubectl, *arguments], check=check, stdin=stdin)
        return done.stdout if check else done.stdout + done.stderr

    def helm(self, *arguments: str, check: bool = True, timeout: float = 420) -> str:
        """helm's output."""
        helm = [self.settings.tool("helm"), f"--kubeconfig={self.kubeconfig}"]
        done = self.run([*helm, *arguments], check=check, timeout=timeout)
        return done.stdout + done.stderr

    def get(self, path: str, user: str = "admin") -> Object:
        """An object or list by its path; RuntimeError where it can't be had."""
        status, answer = self.request("GET", path, user=user)
        if status != 200:
            raise RuntimeError(f"GET {path}: {status} {answer.get('message')}")
        return answer

    def wait(self, claim: str, true: Callable[[], bool], seconds: float, step_seconds: float = 0.1) -> float:
        """Wait until something holds; how long it took. RuntimeError with the logs' ends where it never does."""
        begin = time.monotonic()
        while not true():
            if time.monotonic() - begin > seconds:
                raise RuntimeError(f"waited {seconds} s, but never: {claim}\n{self.ends_of_logs()}")
            time.sleep(step_seconds)
        return time.monotonic() - begin

    def ends_of_logs(self) -> str:
        """What the cluster's programs said last, where they are ours."""
        return ""


def finish(
    arguments: Sequence[str], done: subprocess.CompletedProcess[str], check: bool
) -> subprocess.CompletedProcess[str]:
    """What `run` gives back; RuntimeError with the output where a program failed that must not."""
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:300]}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def decode(raw: bytes) -> Object:
    """An answer's object; what is no JSON object comes as its text."""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"text": raw.decode(errors="replace")}
