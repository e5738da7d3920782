"""Certificates, tokens and kubeconfigs of one cluster, made anew for each."""

import datetime
import ipaddress
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.settings import API_SERVER, NODE_IP, NODE_NAME, SERVICE_IP

# Who may speak to the API server: token file's user, its id and groups; each gets a kubeconfig of the same name.
USERS = {
    "admin": ("admin", ["system:masters"]),
    "kube-controller-manager": ("system:kube-controller-manager", []),
    "kube-scheduler": ("system:kube-scheduler", []),
    "kube-proxy": ("system:kube-proxy", []),
    "kubelet": (f"system:node:{NODE_NAME}", ["system:nodes"]),
    "kai": ("system:serviceaccount:kai-scheduler:binder", ["system:serviceaccounts"]),
    "tenant": ("tenant", ["tenants"]),
}


class Authority:
    """A CA that writes its files into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")])
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, file: str, name: str, organization: str = "", hosts: Sequence[str] = ()) -> None:
        """Write FILE.crt and FILE.key: a server's certificate where hosts are named, else a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(x509.Name(attributes), key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self._folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self._folder / f"{file}.key").write_bytes(_private_pem(key))


def make_all(folder: Path) -> None:
    """Everything that the programs of a cluster read, into one folder."""
    authority = Authority(folder)
    local = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1"]
    authority.issue("apiserver", "kube-apiserver", hosts=[*local, NODE_IP, SERVICE_IP])
    authority.issue("kubelet", f"system:node:{NODE_NAME}", "system:nodes", hosts=[NODE_IP, NODE_NAME])
    authority.issue("kai", "kai-admission", hosts=[NODE_IP])
    authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    authority.issue("front-proxy", "front-proxy-client")
    signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(_private_pem(signing))
    (folder / "accounts.pub").write_bytes(
        signing.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    lines = []
    for name, (user, groups) in USERS.items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{name},"{",".join(groups)}"')
        (folder / f"{name}.kubeconfig").write_text(_kubeconfig(folder / "ca.crt", token))
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")


def _kubeconfig(ca: Path, token: str) -> str:
    """A kubeconfig (JSON is YAML)."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": API_SERVER, "certificate-authority": str(ca)}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
