"""The webhook's certificates: an authority that `muster attach` makes, and what each server makes of it for itself.

A server's certificate lives in its memory and for days, and is made anew by the server: nothing has to be written, so
the webhook needs no right at all. The authority stands in the webhook's configuration; who may write that may have the
API server send it any object, so nobody in the cluster may.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_burnin.errors import GpuBurninError

AUTHORITY_LASTS = timedelta(days=3650)
# Attaching anew makes another one when this is left.
AUTHORITY_RENEWED = timedelta(days=365)
SERVER_LASTS = timedelta(days=30)
SERVER_RENEWED = timedelta(days=10)
# Clocks of API servers differ.
_BEFORE = timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """Certificate and key, PEM. Of an authority the one before may follow, which servers of before still have."""

    certificate: str
    key: str

    @property
    def ends(self) -> datetime:
        """When it does. Raises ValueError for what is no certificate."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc


def make_authority(now: datetime, name: str) -> Pair:
    """A new authority of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = _builder(subject, subject, key, now, AUTHORITY_LASTS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return _pair(built.sign(key, hashes.SHA256()), key)


def renew_authority(old: Pair, now: datetime, name: str) -> Pair:
    """Another authority, and after it the certificate of the old one as long as that is valid.

    All of the text is what the API server believes: so both the servers that have read the new one and those that have
    not are believed, and no Node waits for one of them.
    """
    new = make_authority(now, name)
    try:
        [first, *_] = x509.load_pem_x509_certificates(old.certificate.encode())
    except ValueError:
        return new
    if first.not_valid_after_utc <= now:
        return new
    before = first.public_bytes(serialization.Encoding.PEM).decode("ascii")
    return Pair(f"{new.certificate}{before}", new.key)


def make_server(authority: Pair, dns_name: str, now: datetime, lasts: timedelta = SERVER_LASTS) -> Pair:
    """A server's certificate for a name, which ends no later than the authority. Raises GpuBurninError."""
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signer = serialization.load_pem_private_key(authority.key.encode(), None)
    except ValueError as error:
        raise GpuBurninError(f"the webhook's authority cannot be read ({error}); run `muster attach` again") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or issuer.public_key() != signer.public_key():
        raise GpuBurninError("the webhook's authority and its key are no pair; run `muster attach` again")
    if issuer.not_valid_after_utc <= now:
        raise GpuBurninError("the webhook's authority has ended; run `muster attach` again, which makes another one")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns_name[:64])])
    lasts = min(lasts, issuer.not_valid_after_utc - now)
    built = _builder(subject, issuer.subject, key, now, lasts)
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return _pair(built.sign(signer, hashes.SHA256()), key)


def usable(authority: Pair, now: datetime) -> bool:
    """Whether an authority that is there can stay: it is whole, and does not end soon."""
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        make_server(authority, "muster", now)
        issuer.verify_directly_issued_by(issuer)
    except (GpuBurninError, ValueError, InvalidSignature, TypeError):
        return False
    return issuer.not_valid_after_utc - now > AUTHORITY_RENEWED


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + lasts)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"), text)
