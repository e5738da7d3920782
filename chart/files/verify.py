"""What `helm test` runs: two Jobs with a share of one card; the first takes its share and one step more.

python3 verify.py JOBS.json [--server URL]      JOBS.json: {"neighbour": Job, "share": Job}
In a pod it speaks to the API server by its service account; elsewhere through `kubectl proxy` (--server
http://127.0.0.1:8001). Ends with 0 if the share is kept or nothing can be tested here (SKIPPED says why), else with 1.
"""

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GPU = "nvidia.com/gpu"
KAI, KAI_GROUP = "kai-scheduler", "scheduling.run.ai"


class Failed(Exception):  # noqa: N818 (a verdict, not an error)
    """The promise isn't kept, or it can't be told; the text is for the operator."""


class Api:
    """The API server."""

    def __init__(self, server: str) -> None:
        self._headers = {"Content-Type": "application/json"}
        self._context = None
        self._server = server
        if not server:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
            self._headers["Authorization"] = f"Bearer {(ACCOUNT / 'token').read_text()}"
            self._context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

    def text(self, method: str, path: str, body: object = None) -> str:
        """An answer's text; urllib.error.HTTPError where the server refuses."""
        content = None if body is None else json.dumps(body).encode()
        url = self._server + path  # the operator's own
        request = urllib.request.Request(url, content, self._headers, method=method)  # noqa: S310
        with urllib.request.urlopen(request, context=self._context, timeout=30) as answer:  # noqa: S310
            text: str = answer.read().decode()
            return text

    def get(self, path: str) -> Any:
        """An object."""
        return json.loads(self.text("GET", path))

    def knows_group(self, name: str) -> bool:
        """Whether the cluster serves an API group."""
        return any(group["name"] == name for group in self.get("/apis")["groups"])


class Run:
    """One of the two Jobs."""

    def __init__(self, api: Api, job: dict[str, Any]) -> None:
        self._api = api
        self._job = job
        self._name = job["metadata"]["name"]
        self._namespace = job["metadata"]["namespace"]
        self._jobs = f"/apis/batch/v1/namespaces/{self._namespace}/jobs"

    def remove(self, until: float) -> None:
        """Delete the Job and its pod, and wait until both are gone."""
        try:
            self._api.text("DELETE", f"{self._jobs}/{self._name}", {"propagationPolicy": "Foreground"})
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        while self._pods() and time.monotonic() < until:
            time.sleep(0.5)

    def start(self) -> None:
        """Create the Job."""
        self._api.text("POST", self._jobs, self._job)

    def wait(self, phases: tuple[str, ...], until: float) -> str:
        """Wait until the pod is in one of the phases; which one. Failed, with what the events say, if never."""
        while time.monotonic() < until:
            phase = self.phase()
            if phase in phases:
                return phase
            time.sleep(1)
        raise Failed(
            f"the pod of {self._name} is {self.phase() or 'not created'} and not {' or '.join(phases)}: {self._why()}"
        )

    def phase(self) -> str:
        """The pod's phase, nothing while there is none."""
        pods = self._pods()
        return str(pods[0]["status"].get("phase", "")) if pods else ""

    def log(self) -> str:
        """What the pod printed."""
        pods = self._pods()
        if not pods:
            return ""
        return self._api.text("GET", f"/api/v1/namespaces/{self._namespace}/pods/{pods[0]['metadata']['name']}/log")

    def _pods(self) -> list[dict[str, Any]]:
        selector = f"batch.kubernetes.io/job-name%3D{self._name}"
        pods: list[dict[str, Any]] = self._api.get(
            f"/api/v1/namespaces/{self._namespace}/pods?labelSelector={selector}"
        )["items"]
        return pods

    def _why(self) -> str:
        events = self._api.get(f"/api/v1/namespaces/{self._namespace}/events")["items"]
        own = [event for event in events if event["involvedObject"]["name"].startswith(self._name)]
        return "; ".join(f"{event['reason']}: {event['message']}" for event in own[-3:]) or "no event says why"


def reason_to_skip(api: Api, scheduler: str) -> str:
    """Why nothing can be tested here; nothing if it can."""
    nodes = api.get("/api/v1/nodes")["items"]
    if not any(node["status"].get("allocatable", {}).get(GPU, "0") != "0" for node in nodes):
        return f"no node of this cluster offers {GPU}: there is no GPU to share"
    if scheduler == KAI and not api.knows_group(KAI_GROUP):
        return f"KAI Scheduler isn't installed (no API group {KAI_GROUP}): nobody would grant a share"
    return ""


def verify(api: Api, jobs: dict[str, Any], seconds: float) -> None:
    """Run both Jobs and print what is seen. Failed where the share isn't kept."""
    until = time.monotonic() + seconds
    neighbour, share = Run(api, jobs["neighbour"]), Run(api, jobs["share"])
    for run in (neighbour, share):
        run.remove(until)
    try:
        neighbour.start()
        if neighbour.wait(("Running", "Failed", "Succeeded"), until) != "Running":
            raise Failed(f"the neighbour didn't get its own share:\n{neighbour.log()}")
        while "granted" not in neighbour.log():
            if time.monotonic() > until or neighbour.phase() != "Running":
                raise Failed(f"the neighbour didn't get its own share:\n{neighbour.log()}")
            time.sleep(0.5)
        print("== a neighbour with a share of its own takes three quarters of it:")
        print(neighbour.log().rstrip())
        share.start()
        phase = share.wait(("Succeeded", "Failed"), until)
        print("== beside it, a pod takes its share, and one step more:")
        print(share.log().rstrip())
        if phase != "Succeeded":
            raise Failed("the share isn't kept: see the lines above")
        if neighbour.phase() != "Running":
            raise Failed(f"the neighbour was harmed:\n{neighbour.log()}")
        print("== the neighbour still holds what it took")
    finally:
        for run in (neighbour, share):
            run.remove(time.monotonic() + 30)


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--server", default="", help="URL of the API server, unauthenticated (kubectl proxy)")
    parser.add_argument("--seconds", type=float, default=300, help="time for all of it (%(default)s)")
    given = parser.parse_args()
    jobs = json.loads(given.jobs.read_text())
    api = Api(given.server)
    skip = reason_to_skip(api, jobs["share"]["spec"]["template"]["spec"]["schedulerName"])
    if skip:
        print(f"SKIPPED: {skip}")
        return 0
    try:
        verify(api, jobs, given.seconds)
    except Failed as failed:
        print(f"FAILED: {failed}")
        return 1
    print("PASSED: the quota that is visible is enforced, one step beyond it is refused, the neighbour is unharmed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
