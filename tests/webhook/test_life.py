"""Start, certificate files that change, mutual TLS, stop."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.webhook.server import ROOT, Webhook, body, free_port, pod, read, running, write_certificate

WAIT_SECONDS = 20.0


def start(*flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KRI_")}
    command = [sys.executable, "-m", "webhook", *flags]
    return subprocess.run(
        command, check=False, cwd=ROOT, env=clean | (env or {}), capture_output=True, text=True, timeout=60
    )


def test_help_names_each_option_and_its_variable() -> None:
    done = start("--help")
    assert done.returncode == 0
    assert "--tls-cert" in done.stdout
    assert "KRI_WEBHOOK_TLS_CERT" in done.stdout


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        ([], {}, "--tls-cert"),
        (["--tls-cert", "a"], {}, "belong together"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], {}, "/nowhere"),
        (["--tls-cert", "README.md", "--tls-key", "README.md"], {}, "PEM"),
        ([], {"KRI_WEBHOOK_LISTEN": "8443"}, "KRI_WEBHOOK_LISTEN"),
        ([], {"KRI_WEBHOOK_LISTENS": "x:1"}, "KRI_WEBHOOK_LISTENS"),
        (["--opt-out", "some"], {}, "everyone, namespaces, nobody"),
        (["--tls-cert", "a", "--tls-key", "b", "--opt-out", "namespaces"], {}, "--opt-out-namespaces"),
        (["--tls-secret", "x"], {}, "--cluster"),
    ],
)
def test_wrong_setting_ends_with_one_clear_line(flags: list[str], env: dict[str, str], words: str) -> None:
    done = start(*flags, env=env)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("cluster", ["in-cluster", "kubeconfig"])
def test_without_credentials_it_ends_and_says_so_first(cluster: str) -> None:
    """No trace of the program: what is missing, and by which option."""
    own = ["--tls-secret", "s", "--namespace", "n", "--service", "w", "--webhook-configuration", "c"]
    listen = f"127.0.0.1:{free_port()}"
    done = start("--listen", listen, "--cluster", cluster, *own, env={"KUBECONFIG": "/nowhere", "HOME": "/nowhere"})
    assert done.returncode != 0
    assert done.stderr.startswith(f"webhook: --cluster {cluster}: no credentials for the API server: ")
    assert "Traceback" not in done.stderr


def test_port_in_use_ends_the_program(tmp_path: Path) -> None:
    with running(tmp_path) as webhook:
        files = ["--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")]
        done = start("--listen", f"127.0.0.1:{webhook.port}", *files)
        assert done.returncode != 0
        assert "in use" in done.stderr


def served_serial(webhook: Webhook) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", webhook.port), timeout=20)) as sock:
        der = sock.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.05)


def test_changed_files_are_served_without_a_restart(tmp_path: Path) -> None:
    """Also while they don't fit each other for a moment: the last good pair stays in service."""
    with running(tmp_path, "--certificate-check", "50ms") as webhook:
        worker, old = webhook.worker, served_serial(webhook)
        key = (tmp_path / "tls.key").read_bytes()
        new = write_certificate(tmp_path).leaf().serial_number
        wait_for(lambda: served_serial(webhook) == new)
        assert new != old
        assert webhook.worker == worker
        errors = _errors(webhook)  # a look may have come between the new certificate and its key
        looks = webhook.metric("kai_isolator_webhook_certificate_errors_total")
        part = tmp_path / ".tls.key"
        part.write_bytes(key)
        part.rename(tmp_path / "tls.key")
        wait_for(lambda: webhook.metric("kai_isolator_webhook_certificate_errors_total") > looks + 1)
        assert served_serial(webhook) == new
        assert webhook.get("/readyz")[0] == 200
        assert _errors(webhook) == errors + 1


def _errors(webhook: Webhook) -> int:
    return len([record for record in webhook.records() if record["level"] == "error"])


def client_certificate(folder: Path, common_name: str) -> None:
    """A CA of the API server and a client certificate of it, as files."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.now(UTC)
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    for name, subject, public, path_length in (
        ("client-ca.crt", ca_name, ca_key.public_key(), 0),
        ("client.crt", x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]), key.public_key(), None),
    ):
        certificate = (
            x509.CertificateBuilder(ca_name, subject, public, x509.random_serial_number(), now, now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(path_length is not None, path_length), critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "client.key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


@pytest.mark.parametrize(("name", "code"), [("kube-apiserver", 200), ("system:node:node-1", 403)])
def test_mutual_tls_lets_in_who_is_named(tmp_path: Path, name: str, code: int) -> None:
    """A kubelet has a certificate of the same CA and is not the API server."""
    client_certificate(tmp_path, name)
    flags = ["--client-ca", str(tmp_path / "client-ca.crt"), "--client-names", "kube-apiserver"]
    with running(tmp_path, *flags) as webhook:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            webhook.post(body(pod()))
        context = webhook.context()
        context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        connection = webhook.connect()
        connection._context = context  # type: ignore[attr-defined]
        connection.request("POST", "/mutate", body(pod()), {"Content-Type": "application/json"})
        assert read(connection.getresponse())[0] == code
        connection.close()


def test_stop_refuses_no_request(tmp_path: Path) -> None:
    """Under load, from SIGTERM to the end of the drain: every request that could be sent is answered."""
    failures: list[str] = []
    answered: list[bool] = []
    stopping = threading.Event()

    def ask(webhook: Webhook) -> None:
        connection = webhook.connect()
        while not stopping.is_set() or not connection.sock:
            try:
                connection.request(
                    "POST", "/mutate", body(pod(gpu_memory="4096")), {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                read(response)
            except OSError as error:
                failures.append(repr(error))
                return
            answered.append(stopping.is_set())
            if stopping.is_set() and response.headers.get("Connection") == "close":
                return

    with running(tmp_path, "--drain", "3s") as webhook:
        threads = [threading.Thread(target=ask, args=(webhook,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answered) > 100)
        webhook.process.send_signal(signal.SIGTERM)
        wait_for(lambda: webhook.get("/readyz")[0] == 503)
        stopping.set()
        assert webhook.post(body(pod()))[0] == 200
        for thread in threads:
            thread.join()
        assert webhook.process.wait(timeout=30) == 0
    assert failures == []
    assert True in answered


def test_killed_worker_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path) as webhook:
        first = webhook.worker
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: _answers(webhook))
        assert webhook.worker != first


def _answers(webhook: Webhook) -> bool:
    try:
        return webhook.post(body(pod()))[0] == 200
    except OSError:
        return False
