"""The API server's part: a pod's way through the two admission webhooks, ours over TLS, in the order of their names."""

import base64
import copy
import json
import ssl
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jsonpatch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from e2e.onebox import kai

Pod = dict[str, Any]


class DeniedError(Exception):
    """The webhook refused the pod; the text is what a user reads."""


@dataclass
class Admission:
    """Asks a webhook as the API server does. Of the last pod: `stages` (who made what of it, in order), `warnings`."""

    url: str
    certificate: Path
    stages: list[tuple[str, Pod]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def create(self, pod: Mapping[str, Any]) -> Pod:
        """The pod as it would be stored: our webhook, KAI's, then ours again if KAI changed it, and KAI's again."""
        current = copy.deepcopy(dict(pod))
        current["metadata"].setdefault("namespace", "default")
        self.warnings, self.stages = [], [("as it was sent", current)]
        current = self._pass("our webhook", self.review(current))
        changed = self._pass("KAI's webhook", kai.admit(current))
        if changed != current:
            current = self._pass("our webhook, called again", self.review(changed))
            current = self._pass("KAI's webhook, called again", kai.admit(current))
        current["metadata"]["uid"] = str(uuid.uuid4())
        current["metadata"]["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return current

    def review(self, pod: Pod) -> Pod:
        """One call of our webhook; the pod with its patch applied. Pods without a share never reach it."""
        annotations = pod["metadata"].get("annotations") or {}
        if kai.GPU_MEMORY not in annotations and kai.GPU_FRACTION not in annotations:
            return pod
        uid = str(uuid.uuid4())
        request = {
            "uid": uid,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        response = self._post({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
        if response["uid"] != uid:
            raise DeniedError("the webhook answered another request")
        self.warnings += response.get("warnings", [])
        if not response["allowed"]:
            raise DeniedError(response["status"]["message"])
        patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
        patched: Pod = jsonpatch.apply_patch(pod, patch)
        return patched

    def _pass(self, who: str, pod: Pod) -> Pod:
        self.stages.append((who, copy.deepcopy(pod)))
        return pod

    def _post(self, review: Mapping[str, Any]) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(self.certificate))
        request = urllib.request.Request(  # noqa: S310 — always https
            self.url, json.dumps(review).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310
            response: dict[str, Any] = json.loads(answer.read())["response"]
        return response


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "onebox")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = directory / "tls.crt", directory / "tls.key"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.touch(0o600)
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, private
