"""Which certificates have to be issued, and why. Runs on the controller; uses `cryptography`.

Reads a folder of CAs and leaves (CA/ca.crt, CA/NAME.crt, keys beside them) and compares it with
what is wanted. Issues nothing itself.
"""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki.encryption_keys import parse
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VAULT_HEADER = b"$ANSIBLE_VAULT"
USAGES = {"serverAuth": ExtendedKeyUsageOID.SERVER_AUTH, "clientAuth": ExtendedKeyUsageOID.CLIENT_AUTH}
# A certificate issued a moment ago may look a little longer than its lifetime: it starts in the past.
_LIFETIME_SLACK = timedelta(days=1)
LEAF_DAYS = range(90, 366)


@dataclass(frozen=True)
class Authority:
    """A CA: folder name under the PKI folder and common name."""

    name: str
    cn: str


@dataclass(frozen=True)
class Leaf:
    """A wanted certificate. `sans` are normalised ("DNS:x", "IP:1.2.3.4"); `days` is its lifetime."""

    name: str
    ca: str
    cn: str
    o: str
    sans: tuple[str, ...]
    usages: tuple[str, ...]
    days: int


@dataclass(frozen=True)
class Plan:
    """What has to be done. `authorities` and `leaves` hold (wanted, reason)."""

    authorities: tuple[tuple[Authority, str], ...] = ()
    leaves: tuple[tuple[Leaf, str], ...] = ()
    keypairs: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    loose_files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """Everything that is wanted of one PKI folder."""

    path: Path
    authorities: tuple[Authority, ...]
    leaves: tuple[Leaf, ...]
    keypairs: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    renew_before: timedelta = field(default_factory=lambda: timedelta(days=30))


def normalise_san(text: str) -> str:
    """ "IP:..." for an address, "DNS:..." for anything else."""
    try:
        return f"IP:{ipaddress.ip_address(text)}"
    except ValueError:
        return f"DNS:{text}"


def first_address(network: str) -> str:
    """First usable address of a network: what Kubernetes gives the service `kubernetes`. Raises FleetError."""
    try:
        return str(ipaddress.ip_network(network)[1])
    except (ValueError, IndexError):
        raise FleetError(f"{network} is not a network such as 198.19.128.0/20; correct fleet_service_cidr") from None


def expand_leaves(entries: Iterable[Mapping[str, object]]) -> tuple[Leaf, ...]:
    """Turn the role's list into leaves.

    `for_each` ({host: address}) makes one leaf for each pair, with {host} and {address} replaced in
    name, cn and sans; `first_address_of` adds the first address of a network to the SANs. Raises
    FleetError for two leaves of the same name.
    """
    leaves: dict[tuple[str, str], Leaf] = {}
    for entry in entries:
        pairs = entry.get("for_each")
        hosts = pairs.items() if isinstance(pairs, Mapping) else [("", "")]
        for host, address in hosts:
            leaf = _leaf(entry, {"host": str(host), "address": str(address)})
            if (leaf.ca, leaf.name) in leaves:
                raise FleetError(f"two certificates are called {leaf.ca}/{leaf.name}; rename one")
            leaves[leaf.ca, leaf.name] = leaf
    return tuple(leaves.values())


def make_plan(request: Request, now: datetime) -> Plan:
    """Compare the folder with the request. Raises FleetError where going on would destroy trust already given."""
    names = {authority.name for authority in request.authorities}
    for leaf in request.leaves:
        if leaf.ca not in names:
            raise FleetError(f"certificate {leaf.name} names the unknown CA {leaf.ca}")
        if leaf.days not in LEAF_DAYS:
            raise FleetError(f"pki_leaf_days is {leaf.days}; give {LEAF_DAYS[0]} to {LEAF_DAYS[-1]}")
        if timedelta(days=leaf.days) <= request.renew_before:
            raise FleetError(
                f"pki_renew_before_days is {request.renew_before.days}, which is not less than pki_leaf_days "
                f"({leaf.days}): each run would issue everything again; lower it"
            )
    warnings: list[str] = []
    authorities = tuple(
        (authority, reason)
        for authority in request.authorities
        if (reason := _authority_reason(request, authority, now, warnings))
    )
    new = {authority.name for authority, _ in authorities}
    leaves = []
    for leaf in request.leaves:
        reason = "its CA is new" if leaf.ca in new else _leaf_reason(request, leaf, now)
        if reason:
            _require_ca_key(request.path / leaf.ca, leaf, new)
            leaves.append((leaf, reason))
    return Plan(
        authorities=authorities,
        leaves=tuple(leaves),
        keypairs=tuple(name for name in request.keypairs if _keypair_missing(request.path / name)),
        secrets=tuple(name for name in request.secrets if _secret_missing(request.path / name)),
        directories=_directories(request),
        loose_files=_loose_files(request.path),
        warnings=tuple(warnings),
    )


def _leaf(entry: Mapping[str, object], values: Mapping[str, str]) -> Leaf:
    def text(key: str) -> str:
        return str(entry.get(key) or "").format_map(values)

    sans = [normalise_san(str(san).format_map(values)) for san in _list(entry.get("sans"))]
    if entry.get("first_address_of"):
        sans.append(f"IP:{first_address(str(entry['first_address_of']))}")
    return Leaf(
        name=text("name"),
        ca=text("ca"),
        cn=text("cn"),
        o=text("o"),
        sans=tuple(dict.fromkeys(sans)),
        usages=tuple(str(usage) for usage in _list(entry.get("usages"))),
        days=int(str(entry["days"])),
    )


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else []


def _authority_reason(request: Request, authority: Authority, now: datetime, warnings: list[str]) -> str:
    folder = request.path / authority.name
    certificate = _certificate(folder / "ca.crt")
    if certificate is None:
        return "it does not exist"
    remaining = certificate.not_valid_after_utc - now
    advice = f"move {folder} away to make a new CA (all its certificates are then issued again)"
    rotate = "replace it with playbooks/rotate_certificates.yml"
    if remaining <= timedelta(0):
        raise FleetError(
            f"{folder}/ca.crt has expired on {certificate.not_valid_after_utc:%Y-%m-%d}; {rotate} -e step=reissue"
        )
    if remaining < request.renew_before:
        warnings.append(f"{folder}/ca.crt expires on {certificate.not_valid_after_utc:%Y-%m-%d}; {rotate}")
    key = folder / "ca.key"
    if key.exists() and not _is_vaulted(key) and _key_public(key) != _public(certificate):
        if (folder / "next.crt").exists():
            raise FleetError(
                f"{folder}: a rotation was cut in its second step; run playbooks/rotate_certificates.yml "
                "-e step=reissue again"
            )
        raise FleetError(
            f"{key} is not the key of {folder}/ca.crt; put the right one back from your backup, or {advice}"
        )
    return ""


def _require_ca_key(folder: Path, leaf: Leaf, new: set[str]) -> None:
    if leaf.ca not in new and not (folder / "ca.key").exists():
        raise FleetError(
            f"{folder}/ca.key is needed to issue {leaf.name} and is missing; put it back for this run, "
            f"or move {folder} away to make a new CA"
        )


def _leaf_reason(request: Request, leaf: Leaf, now: datetime) -> str:
    folder = request.path / leaf.ca
    certificate = _certificate(folder / f"{leaf.name}.crt")
    if certificate is None:
        return "it does not exist"
    key = folder / f"{leaf.name}.key"
    if not key.exists():
        return "its key does not exist"
    if not _is_vaulted(key) and _key_public(key) != _public(certificate):
        return "its key does not match"
    authority = _certificate(folder / "ca.crt")
    if authority is None or not _is_issued_by(certificate, authority):
        return "its CA changed"
    remaining = certificate.not_valid_after_utc - now
    if remaining < request.renew_before:
        return f"it expires on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if remaining > timedelta(days=leaf.days) + _LIFETIME_SLACK:
        return f"it is valid for longer than {leaf.days} days"
    return _content_reason(certificate, leaf)


def _content_reason(certificate: x509.Certificate, leaf: Leaf) -> str:
    subject = certificate.subject
    names = [[str(a.value) for a in subject.get_attributes_for_oid(oid)] for oid in _SUBJECT_OIDS]
    if names != [[leaf.cn], [leaf.o] if leaf.o else []]:
        return f"its subject is {subject.rfc4514_string()}"
    if _sans(certificate) != set(leaf.sans):
        changed = sorted(_sans(certificate) ^ set(leaf.sans))
        return f"its names or addresses differ ({', '.join(changed)})"
    if _usages(certificate) != {USAGES[usage] for usage in leaf.usages}:
        return "its usages differ"
    return ""


_SUBJECT_OIDS = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)


def _sans(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {f"DNS:{name}" for name in names.get_values_for_type(x509.DNSName)} | {
        f"IP:{address}" for address in names.get_values_for_type(x509.IPAddress)
    }


def _usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return set()


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _certificate(path: Path) -> x509.Certificate | None:
    if not path.exists():
        return None
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise FleetError(f"{path} is not a certificate; remove it to get a new one") from None


def _key_public(path: Path) -> bytes:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FleetError(f"{path} is not a plain private key; remove it to get a new one") from None
    return _encode(key.public_key())


def _public(certificate: x509.Certificate) -> bytes:
    return _encode(certificate.public_key())


def _encode(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _is_vaulted(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(VAULT_HEADER)) == VAULT_HEADER


def _keypair_missing(base: Path) -> bool:
    public = base.with_name(base.name + ".pub")
    private = base.with_name(base.name + ".key")
    if not private.exists() and public.exists():
        raise FleetError(f"{private} is missing but {public} exists; put the key back from your backup")
    if not private.exists() or not public.exists():
        return True
    if _is_vaulted(private):
        return False
    try:
        loaded = serialization.load_pem_public_key(public.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        return True
    return _encode(loaded) != _key_public(private)


def _secret_missing(path: Path) -> bool:
    if not path.exists():
        return True
    if _is_vaulted(path):
        return False
    parse(path.read_text(errors="replace"), str(path))
    return False


def _directories(request: Request) -> tuple[str, ...]:
    wanted = [request.path, *(request.path / authority.name for authority in request.authorities)]
    return tuple(str(path) for path in wanted if not path.is_dir() or stat.S_IMODE(path.stat().st_mode) != 0o700)


def _loose_files(path: Path) -> tuple[str, ...]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return tuple(str(file) for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077)
