"""TLS contexts of the server, replaced while it runs: each new connection takes the current one."""

import os
import ssl
from datetime import datetime

from cryptography import x509


def make_context(certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes | None) -> ssl.SSLContext:
    """Return a context that serves this certificate. Raises ssl.SSLError where certificate and key don't fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # No other protocol: gunicorn's HTTP/2 serves a connection's requests one after another and keeps a thread for it.
    context.set_alpn_protocols(["http/1.1"])
    # load_cert_chain takes files only; an anonymous one never reaches a disk.
    descriptor = os.memfd_create("serving-certificate")
    try:
        for pem in (certificate_pem, b"\n", key_pem):
            os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    if client_ca_pem is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca_pem.decode("ascii"))
    return context


def expiry(certificate_pem: bytes) -> datetime:
    """Return when the first certificate of the chain expires."""
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc


class Contexts:
    """Holds what is served. `current` is None until there is a certificate."""

    def __init__(self) -> None:
        self.current: ssl.SSLContext | None = None
        self.served: tuple[bytes, bytes, bytes | None] | None = None

    def serve(self, certificate_pem: bytes, key_pem: bytes, client_ca_pem: bytes | None) -> bool:
        """Serve this from the next connection on. Returns whether it is another one than before."""
        wanted = (certificate_pem, key_pem, client_ca_pem)
        if wanted == self.served:
            return False
        self.current = make_context(*wanted)
        self.served = wanted
        return True
