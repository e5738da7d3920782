"""KAI Scheduler's part, played by a program: admission webhook and binder. What it does to a pod is in onebox/kai.py.

`python -m e2e.cluster.kai --kubeconfig FILE --certificate FILE --key FILE`, inside the cluster's network.
"""

import argparse
import base64
import json
import socketserver
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from e2e.cluster.settings import NODE_IP, NODE_NAME
from e2e.onebox import kai

PORT = 9443
POLL_SECONDS = 0.2


class Api:
    """The API server, as much as is needed here."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._token = config["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer's object; urllib's error where it refuses."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, content, headers, method=method)  # noqa: S310
        with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:  # noqa: S310
            return json.load(answer)


class Server(socketserver.ThreadingTCPServer):
    """http.server's own asks the DNS for the host's name before it listens, and in here nobody answers."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


class Admission(BaseHTTPRequestHandler):
    """Answers reviews of pods."""

    def do_POST(self) -> None:
        """One review. A pod is changed by whole lists, as KAI's own webhook does."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        pod = request["object"]
        response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        try:
            changed = kai.admit(named(pod))
        except ValueError as error:
            response |= {"allowed": False, "status": {"message": str(error)}}
        else:
            patch = [
                {"op": "add", "path": path, "value": value}
                for path, value in (
                    ("/metadata/annotations", changed["metadata"].get("annotations")),
                    ("/spec", changed["spec"] | ({"runtimeClassName": "nvidia"} if kai.wants_share(pod) else {})),
                )
                if value is not None and kai.wants_share(pod)
            ]
            if patch:
                encoded = base64.b64encode(json.dumps(patch).encode()).decode()
                response |= {"patchType": "JSONPatch", "patch": encoded}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        content = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def named(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with a name, from which KAI makes that of its ConfigMap; a Deployment's pod has none yet."""
    metadata = pod["metadata"]
    return pod | {"metadata": {**metadata, "name": metadata.get("name") or metadata.get("generateName", "pod")}}


def schedule(api: Api) -> None:
    """Bind the pods that wait for this scheduler, for ever."""
    while True:
        time.sleep(POLL_SECONDS)
        try:
            waiting = api.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3D")["items"]
            for pod in waiting:
                if pod["spec"].get("schedulerName") == kai.SCHEDULER:
                    bind(api, pod)
        except OSError as error:
            detail = error.read()[:500] if isinstance(error, urllib.error.HTTPError) else ""
            sys.stderr.write(f"{error} {detail!r}\n")


def bind(api: Api, pod: dict[str, Any]) -> None:
    """Write the ConfigMaps of a share, owned by the pod, then bind it to the node."""
    metadata = pod["metadata"]
    namespace = f"/api/v1/namespaces/{metadata['namespace']}"
    if kai.wants_share(pod):
        labels = api.request("GET", f"/api/v1/nodes/{NODE_NAME}")["metadata"]["labels"]
        label = labels.get("nvidia.com/gpu.memory")
        uuid = labels.get("simgpu/uuid", "all")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        for name, data in kai.bind(pod, None if label is None else int(label), uuid).items():
            own = {"name": name, "ownerReferences": [owner]}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": own, "data": data}
            try:
                api.request("POST", f"{namespace}/configmaps", body)
            except urllib.error.HTTPError as error:
                if error.code != 409:  # it is there already: an earlier attempt got so far
                    raise
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": target}
    api.request("POST", f"{namespace}/pods/{metadata['name']}/binding", body)


def configuration(ca: bytes) -> dict[str, Any]:
    """KAI's webhook configuration: its name puts it behind ours."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating-kai-admission"},
        "webhooks": [
            {
                "name": "pods.kai.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": {"url": f"https://{NODE_IP}:{PORT}/", "caBundle": base64.b64encode(ca).decode()},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "matchConditions": [
                    {"name": "its-own", "expression": f"object.spec.?schedulerName.orValue('') == '{kai.SCHEDULER}'"}
                ],
            }
        ],
    }


# By this KAI's presence shows; what it holds is of no interest here.
QUEUES: dict[str, Any] = {
    "metadata": {"name": "queues.scheduling.run.ai"},
    "spec": {
        "group": "scheduling.run.ai",
        "scope": "Cluster",
        "names": {"kind": "Queue", "plural": "queues"},
        "versions": [
            {
                "name": "v2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def main() -> None:
    """Serve and schedule until killed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster.kai", description=__doc__)
    for flag in ("--kubeconfig", "--certificate", "--key"):
        parser.add_argument(flag, type=Path, required=True)
    given = parser.parse_args()
    server = Server((NODE_IP, PORT), Admission)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.certificate, given.key)
    # The handshake comes with the first read, in the connection's own thread: a slow client keeps nobody waiting.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    schedule(Api(given.kubeconfig))


if __name__ == "__main__":
    main()
