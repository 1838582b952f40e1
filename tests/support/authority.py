"""Certificates for the servers and clients of integration tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """A throw-away certificate authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster-test")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self._name, self._key.public_key()).add_extension(constraints, critical=True)
        self._write("ca", certificate, self._key)

    def issue(
        self,
        user: str,
        groups: Sequence[str] = (),
        *,
        server: bool = False,
        peer: str = "",
        names: Sequence[str] = (),
        ended: bool = False,
    ) -> tuple[Path, Path]:
        """Certificate and key files; a server's is for 127.0.0.1, that of a peer is for both sides at its address.

        `names`: addresses and host names that it is for besides. One that has `ended` did so an hour ago.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        attributes += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if server or peer else []
        usages += [] if server else [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(
            x509.Name(attributes), key.public_key(), dt.timedelta(hours=-1) if ended else dt.timedelta(days=1)
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if server or peer:
            found = [_general_name(name) for name in (peer or "127.0.0.1", *names)]
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        return self._write(secrets.token_hex(8), builder, key)

    def sign(self, request: bytes) -> bytes:
        """The certificate of a client who made this request, as controller-manager signs it; both PEM."""
        asked = x509.load_pem_x509_csr(request)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(asked.subject, asked.public_key()).add_extension(usage, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _builder(
        self, name: x509.Name, key: CertificatePublicKeyTypes, valid: dt.timedelta = dt.timedelta(days=1)
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + min(valid, dt.timedelta()) - dt.timedelta(minutes=5))
            .not_valid_after(now + valid)
        )

    def _write(self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        certificate = self.directory / f"{name}.crt"
        key_file = self.directory / f"{name}.key"
        signed = builder.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_file.touch(0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        return certificate, key_file


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
