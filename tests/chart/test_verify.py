"""What `helm test` and README's command without helm say, before an API server that plays both Jobs."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARE, NEIGHBOUR = "kai-resource-isolator-share", "kai-resource-isolator-neighbour"
SHARE_LOG = "limit=4147m\nverdict  kept: 4147 MiB, to the last block and not one more\n"
NEIGHBOUR_LOG = "granted  3 GiB\nheld     3 GiB\n"


@dataclass
class Cluster:
    """What is there, what becomes of each Job's pod (its phases in turn; the last one stays), and what was asked."""

    gpus: str = "1"
    groups: tuple[str, ...] = ("batch", "scheduling.run.ai")
    phases: dict[str, list[str]] = field(default_factory=lambda: {NEIGHBOUR: ["Running"], SHARE: ["Succeeded"]})
    logs: dict[str, str] = field(default_factory=lambda: {NEIGHBOUR: NEIGHBOUR_LOG, SHARE: SHARE_LOG})
    harm: bool = False  # the neighbour dies once the other one has begun
    jobs: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """HTTP status and content."""
        name = next((job for job in (SHARE, NEIGHBOUR) if job in path), "")
        if method == "POST":
            self.jobs.add(body["metadata"]["name"])
            self.asked.append("start " + body["metadata"]["name"].rpartition("-")[2])
            return 201, body
        if method == "DELETE":
            self.asked.append("remove " + name.rpartition("-")[2])
            status = 200 if name in self.jobs else 404
            self.jobs.discard(name)
            return status, {}
        return 200, self._get(path, name)

    def _get(self, path: str, name: str) -> Any:
        if path == "/apis":
            return {"groups": [{"name": group} for group in self.groups]}
        if path == "/api/v1/nodes":
            return {"items": [{"status": {"allocatable": {"nvidia.com/gpu": self.gpus}}}]}
        if path.endswith("/log"):
            return self.logs[name]
        if path.endswith("/events"):
            event = {"involvedObject": {"name": f"{SHARE}-abcde"}, "reason": "FailedMount", "message": "no library"}
            return {"items": [event]}
        if name not in self.jobs:
            return {"items": []}
        phases = self.phases[name]
        phase = "Failed" if self.harm and name == NEIGHBOUR and SHARE in self.jobs else phases[0]
        del phases[: len(phases) > 1]
        return {"items": [{"metadata": {"name": f"{name}-abcde"}, "status": {"phase": phase}}]}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = made.answer(self.command, self.path, body)
            text = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_port}"
        yield made
        server.shutdown()


def _verify(cluster: Cluster, seconds: float = 20) -> tuple[int, list[str]]:
    """README's command: exit status and lines."""
    command = [sys.executable, "chart/files/verify.py", "e2e/chart/jobs.json", "--server", cluster.url]
    command.append(f"--seconds={seconds}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_share_that_is_kept_passes_and_both_logs_are_shown(cluster: Cluster) -> None:
    status, lines = _verify(cluster)
    assert status == 0
    assert {"granted  3 GiB", "limit=4147m", "== the neighbour still holds what it took"} <= set(lines)
    assert lines[-1].startswith("PASSED: the quota that is visible is enforced")
    # What an earlier run left goes first, the neighbour holds its share before the other one begins, nothing stays.
    ended = ["remove neighbour", "remove share"]
    assert cluster.asked == [*ended, "start neighbour", "start share", *ended]
    assert cluster.jobs == set()


def test_share_that_is_not_kept_fails(cluster: Cluster) -> None:
    cluster.phases[SHARE] = ["Pending", "Failed"]
    cluster.logs[SHARE] = "verdict  broken\n"
    status, lines = _verify(cluster)
    assert status == 1
    assert "verdict  broken" in lines
    assert lines[-1] == "FAILED: the share isn't kept: see the lines above"
    assert cluster.jobs == set()


def test_neighbour_that_is_harmed_is_a_failure(cluster: Cluster) -> None:
    cluster.harm = True
    status, lines = _verify(cluster)
    assert status == 1
    assert any(line.startswith("FAILED: the neighbour was harmed") for line in lines)
    assert cluster.jobs == set()


@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_neighbour_without_its_share_is_a_failure(cluster: Cluster, phase: str) -> None:
    cluster.phases[NEIGHBOUR] = [phase]
    cluster.logs[NEIGHBOUR] = "refused  3 GiB: CUDA_ERROR_OUT_OF_MEMORY (2)\n"
    status, lines = _verify(cluster, seconds=2)
    assert status == 1
    assert any(line.startswith("FAILED: the neighbour didn't get its own share") for line in lines)
    assert "start share" not in cluster.asked
    assert cluster.jobs == set()


def test_pod_that_never_runs_is_told_with_its_events(cluster: Cluster) -> None:
    cluster.phases[SHARE] = ["Pending"]
    status, lines = _verify(cluster, seconds=2)
    assert status == 1
    assert lines[-1] == (f"FAILED: the pod of {SHARE} is Pending and not Succeeded or Failed: FailedMount: no library")
    assert cluster.jobs == set()


def test_without_a_gpu_it_is_skipped_and_starts_nothing(cluster: Cluster) -> None:
    cluster.gpus = "0"
    assert _verify(cluster) == (
        0,
        ["SKIPPED: no node of this cluster offers nvidia.com/gpu: there is no GPU to share"],
    )
    assert cluster.asked == []


def test_without_kai_it_is_skipped_and_starts_nothing(cluster: Cluster) -> None:
    cluster.groups = ("batch",)
    assert _verify(cluster) == (
        0,
        ["SKIPPED: KAI Scheduler isn't installed (no API group scheduling.run.ai): nobody would grant a share"],
    )
    assert cluster.asked == []
