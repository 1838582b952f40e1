"""Make the keys and certificates that a plan asks for. Runs on the controller; uses `cryptography`.

Everything is made in memory and placed at the end; what exists is never replaced unless the plan says
so, and no key of a CA, key pair or secret is ever overwritten.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys
from ansible_collections.muster.fleet.plugins.module_utils.pki.plan import (
    USAGES,
    Authority,
    Leaf,
)
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# A host whose clock is a little behind may use a certificate at once.
BACKDATED = timedelta(hours=1)
_USAGE_BITS = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True)
class Order:
    """What to make below `path`. `ca_keys`: the keys (decrypted PEM) of the CAs that are there and sign."""

    path: Path
    authorities: tuple[Authority, ...]
    leaves: tuple[Leaf, ...]
    keypairs: tuple[str, ...]
    secrets: tuple[str, ...]
    directories: tuple[str, ...]
    loose_files: tuple[str, ...]
    ca_days: int
    ca_keys: Mapping[str, str]


@dataclass(frozen=True)
class Issuer:
    """A CA that can sign."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def issue(order: Order, now: datetime) -> None:
    """Make and place everything. Raises FleetError (before anything is placed), FleetError, OSError."""
    made: list[files.FileSpec] = []
    issuers: dict[str, Issuer] = {}
    for authority in order.authorities:
        folder = order.path / authority.name
        key = _kept_or_new_key(folder / "ca.key")
        certificate = make_authority(authority, key, now, order.ca_days)
        issuers[authority.name] = Issuer(key, certificate)
        made += [_file(folder / "ca.key", pem_of_key(key)), _file(folder / "ca.crt", _pem(certificate))]
    for leaf in order.leaves:
        if leaf.ca not in issuers:
            issuers[leaf.ca] = _load_issuer(order, leaf.ca)
        key = ec.generate_private_key(ec.SECP256R1())
        base = order.path / leaf.ca / leaf.name
        made += [
            _file(f"{base}.key", pem_of_key(key)),
            _file(f"{base}.crt", _pem(make_leaf(leaf, key, issuers[leaf.ca], now))),
        ]
    for name in order.keypairs:
        key = _kept_or_new_key(order.path / f"{name}.key")
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        made += [_file(order.path / f"{name}.key", pem_of_key(key)), _file(order.path / f"{name}.pub", public)]
    for name in order.secrets:
        if (order.path / name).exists():
            raise FleetError(f"{order.path / name} is there and will not be overwritten; run again")
        # With its date: one that is younger than a day is not replaced.
        key = encryption_keys.made(secrets.token_bytes(encryption_keys.KEY_BYTES), now)
        made.append(_file(order.path / name, encryption_keys.text_of([key]).encode()))
    _place(order, made)


def make_authority(authority: Authority, key: ec.EllipticCurvePrivateKey, now: datetime, days: int) -> x509.Certificate:
    """A self-signed CA that may sign leaves only (RFC 5280: pathLenConstraint 0)."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority.cn)])
    builder = _builder(name, name, key.public_key(), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
    return builder.sign(key, hashes.SHA256())


def make_leaf(leaf: Leaf, key: ec.EllipticCurvePrivateKey, issuer: Issuer, now: datetime) -> x509.Certificate:
    """A certificate for `key`, signed by `issuer`."""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, leaf.cn)]
    if leaf.o:
        subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.o))
    builder = _builder(x509.Name(subject), issuer.certificate.subject, key.public_key(), now, leaf.days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([USAGES[usage] for usage in leaf.usages]), critical=False)
    identifier = issuer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    if leaf.sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(leaf.sans)), critical=False)
    return builder.sign(issuer.key, hashes.SHA256())


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as an unencrypted PEM file."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def load_key(path: Path, content: bytes) -> ec.EllipticCurvePrivateKey:
    """The key in `content`, which is that of the file `path`. Raises FleetError."""
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FleetError(f"{path} is not a private key; put it back from your backup") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FleetError(f"{path} is not an elliptic curve key; put back the one that this fleet began with")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*bits: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{bit: bit in bits for bit in _USAGE_BITS})


def _names(sans: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for san in sans:
        kind, _, value = san.partition(":")
        names.append(x509.IPAddress(ipaddress.ip_address(value)) if kind == "IP" else x509.DNSName(value))
    return names


def _load_issuer(order: Order, name: str) -> Issuer:
    folder = order.path / name
    if name not in order.ca_keys:
        raise FleetError(f"{folder}/ca.key must sign and was not given; add it to ca_keys")
    certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = load_key(folder / "ca.key", order.ca_keys[name].encode())
    # The plan cannot look into a key under ansible-vault, so it is compared here.
    if key.public_key() != certificate.public_key():
        raise FleetError(f"{folder}/ca.key is not the key of {folder}/ca.crt; put the right one back from your backup")
    return Issuer(key, certificate)


def _kept_or_new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key that a killed run has left, else a new one."""
    return load_key(path, path.read_bytes()) if path.exists() else ec.generate_private_key(ec.SECP256R1())


def _file(path: Path | str, content: bytes) -> files.FileSpec:
    return files.FileSpec(dest=str(path), content=content, mode=0o600, sensitive=True)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _place(order: Order, made: Sequence[files.FileSpec]) -> None:
    for loose in order.loose_files:
        Path(loose).chmod(0o600)
    files.apply(made, [files.DirectorySpec(path, 0o700) for path in order.directories])
