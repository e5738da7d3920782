"""The webhook's own certificate authority: pure functions of what there is, the names wanted and the time.

A bundle holds every CA that is still trusted, the newest last, the newest one's key, and one serving certificate.
The life of it:
- a new CA is added while the old one has a third of its life left; for the settling time it is only trusted, so that
  every API server knows it before a certificate of it is served;
- the serving certificate is renewed with a third of its life left, by the newest CA that has settled;
- an old CA leaves when it expires. Until then what it signed is trusted too.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of nodes differ: a certificate is valid from a little before it was made.
BACKDATE = timedelta(minutes=5)
_COMMON_NAME_CHARACTERS = 64

CA_BUNDLE, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


class CorruptError(ValueError):
    """The stored data isn't a usable bundle."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates live, and how long a new CA is trusted before it signs what is served."""

    ca: timedelta
    certificate: timedelta
    settling: timedelta


@dataclass(frozen=True, slots=True)
class Bundle:
    """PEM texts, as they lie in the Secret."""

    ca_bundle: bytes
    ca_key: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, data: dict[str, bytes]) -> "Bundle":
        """Return the stored bundle. Raises CorruptError unless all parts fit together."""
        try:
            bundle = cls(data[CA_BUNDLE], data[CA_KEY], data[CERTIFICATE], data[KEY])
            newest, certificate = bundle.authorities()[-1], bundle.leaf()
            if not _fits(newest, bundle.ca_key) or not _fits(certificate, bundle.key):
                raise CorruptError("a key doesn't belong to its certificate")
            if issuer(bundle.certificate, bundle.ca_bundle) is None:
                raise CorruptError("the certificate comes from none of the CAs")
        except KeyError as error:
            raise CorruptError(f"{error.args[0]} is missing") from None
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptError(f"not readable: {error}") from None
        return bundle

    def data(self) -> dict[str, bytes]:
        """Return what is stored."""
        return {CA_BUNDLE: self.ca_bundle, CA_KEY: self.ca_key, CERTIFICATE: self.certificate, KEY: self.key}

    def authorities(self) -> list[x509.Certificate]:
        """Return the CAs, the newest last."""
        return x509.load_pem_x509_certificates(self.ca_bundle)

    def leaf(self) -> x509.Certificate:
        """Return the serving certificate."""
        return x509.load_pem_x509_certificate(self.certificate)


def issuer(certificate_pem: bytes, bundle_pem: bytes) -> x509.Certificate | None:
    """Return the CA of the bundle that signed the certificate. Raises ValueError where one isn't readable."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    for authority in x509.load_pem_x509_certificates(bundle_pem):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return authority
    return None


def create(names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """Return a bundle with a CA and a serving certificate of its own."""
    ca, ca_key = _make_authority(now, lifetimes)
    certificate, key = _make_leaf(names, ca, ca_key, now, lifetimes)
    return Bundle(_pem(ca), _key_pem(ca_key), certificate, key)


def renew(bundle: Bundle, names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """Return what the bundle should be now: the same object while nothing is due."""
    authorities = bundle.authorities()
    newest = authorities[-1]
    if newest.not_valid_after_utc <= now:
        return create(names, now, lifetimes)
    ca_key_pem = bundle.ca_key
    kept = [ca for ca in authorities if ca.not_valid_after_utc > now]
    if newest.not_valid_after_utc - now < max(lifetimes.ca / 3, lifetimes.certificate):
        newest, ca_key = _make_authority(now, lifetimes)
        kept.append(newest)
        ca_key_pem = _key_pem(ca_key)
    certificate, key = bundle.certificate, bundle.key
    settled = now - (newest.not_valid_before_utc + BACKDATE) >= lifetimes.settling
    served = bundle.leaf()
    usable = served.not_valid_after_utc > now and _names(served) >= _general_names(names)
    if not usable or (settled and served.not_valid_after_utc - now < lifetimes.certificate / 3):
        certificate, key = _make_leaf(names, newest, _load_key(ca_key_pem), now, lifetimes)
    ca_bundle = bundle.ca_bundle if kept == authorities else b"".join(_pem(ca) for ca in kept)
    renewed = Bundle(ca_bundle, ca_key_pem, certificate, key)
    return bundle if renewed == bundle else renewed


def merge(present_pem: bytes, wanted: Sequence[x509.Certificate], now: datetime) -> bytes | None:
    """Return the caBundle to write so that the wanted CAs are trusted, None where `present_pem` is right.

    Other CAs stay while they are valid: another replica may still serve what they signed.
    """
    try:
        present = x509.load_pem_x509_certificates(present_pem)
    except ValueError:
        present = []
    valid = [ca for ca in present if ca.not_valid_after_utc > now]
    missing = [ca for ca in wanted if ca not in valid]
    if not missing and present and valid == present:
        return None
    return b"".join(_pem(ca) for ca in [*valid, *missing])


def _make_authority(now: datetime, lifetimes: Lifetimes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Two CAs overlap: the names tell them apart.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kai-resource-isolator webhook CA {serial:x}"[:60])])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + lifetimes.ca)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _make_leaf(
    names: Sequence[str],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    lifetimes: Lifetimes,
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = x509.NameAttribute(NameOID.COMMON_NAME, names[0][:_COMMON_NAME_CHARACTERS])
    certificate = (
        x509.CertificateBuilder(ca.subject, x509.Name([common_name]), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(min(now + lifetimes.certificate, ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(sorted(_general_names(names), key=str)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _general_names(names: Sequence[str]) -> set[x509.GeneralName]:
    found: set[x509.GeneralName] = set()
    for name in names:
        try:
            found.add(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.add(x509.DNSName(name))
    return found


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()


def _fits(certificate: x509.Certificate, key_pem: bytes) -> bool:
    return _load_key(key_pem).public_key() == certificate.public_key()


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CorruptError("a key of another kind")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())
