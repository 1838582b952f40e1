"""A CA is replaced in three steps: its successor is trusted, then signs, then stands alone. Runs on the controller.

In each CA's folder `ca.crt` holds the CAs that count, the one that signs first; `ca.key` is the signer's. Between the
first two steps `next.crt` and `next.key` are the successor's. Each step may be killed at any point and run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.pki.issue import load_key, make_authority, pem_of_key
from ansible_collections.muster.fleet.plugins.module_utils.pki.plan import Authority
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

STEPS = ("trust", "reissue", "drop")
COMMAND = "playbooks/rotate_certificates.yml -e step={}"


class Phase(StrEnum):
    """Where a CA is: alone, with a successor that is trusted, or with a predecessor that still counts."""

    SETTLED = "settled"
    TRUSTED = "trusted"
    REISSUED = "reissued"


@dataclass(frozen=True)
class Change:
    """What a step does to one CA: files to write, in this order, then files to remove."""

    authority: str
    words: str
    write: tuple[files.FileSpec, ...] = ()
    remove: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Exchanged:
    """The two CAs of a rotation that is under way, in PEM, and where it is."""

    authority: str
    old: str
    new: str
    phase: Phase


def phase(folder: Path) -> Phase:
    """Where the CA of this folder is; a step that was killed counts as not done. Raises FleetError."""
    bundle, successor = _bundle(folder), _successor(folder)
    if successor is not None and successor in bundle:
        return Phase.TRUSTED
    return Phase.REISSUED if len(bundle) > 1 else Phase.SETTLED


def changes(path: Path, authorities: Sequence[Authority], step: str, now: datetime, ca_days: int) -> list[Change]:
    """What a step has to do to these CAs of the PKI folder `path`; empty when it is done. Raises FleetError."""
    found = [_change(path / authority.name, authority, step, now, ca_days) for authority in authorities]
    return [change for change in found if change]


def apply(change: Change) -> None:
    """Write and remove. Raises FleetError, OSError."""
    for spec in change.write:
        files.apply([spec], [])
    for path in change.remove:
        path.unlink(missing_ok=True)


def under_way(path: Path, authorities: Sequence[Authority]) -> list[Exchanged]:
    """The rotations that have begun and not ended. Raises FleetError."""
    found = []
    for authority in authorities:
        bundle, successor = _bundle(path / authority.name), _successor(path / authority.name)
        if len(bundle) > 1:
            new = successor if successor in bundle else bundle[0]
            old = next(one for one in bundle if one != new)
            now = phase(path / authority.name)
            found.append(Exchanged(authority.name, _pem(old).decode(), _pem(new).decode(), now))
    return found


def _change(folder: Path, authority: Authority, step: str, now: datetime, ca_days: int) -> Change | None:
    current = phase(folder)
    if step == "trust":
        return _trust(folder, authority, current, now, ca_days)
    if step == "reissue":
        return _reissue(folder, authority, current, now, ca_days)
    return _drop(folder, authority, current)


def _trust(folder: Path, authority: Authority, current: Phase, now: datetime, ca_days: int) -> Change | None:
    if current is Phase.REISSUED:
        raise FleetError(
            f"{folder}: a rotation has not ended: its old CA still counts; first run {COMMAND.format('drop')}"
        )
    if current is Phase.TRUSTED:
        return None
    made, successor = _made(folder, authority, now, ca_days)
    bundle = _file(folder / "ca.crt", _pem(_bundle(folder)[0]) + _pem(successor))
    return Change(authority.name, "a successor is made and trusted", (*made, bundle))


def _reissue(folder: Path, authority: Authority, current: Phase, now: datetime, ca_days: int) -> Change | None:
    if current is Phase.REISSUED:
        return None
    if current is Phase.SETTLED and _bundle(folder)[0].not_valid_after_utc > now:
        raise FleetError(
            f"{folder}: no host trusts a successor yet, and what it signed would be refused; first run "
            f"{COMMAND.format('trust')}"
        )
    # Nobody trusts a CA that has expired: there is nothing to keep, and no reason to wait.
    made, successor = _made(folder, authority, now, ca_days)
    others = [one for one in _bundle(folder) if one != successor]
    write = (*made, *_signer(folder, made), _file(folder / "ca.crt", b"".join(map(_pem, (successor, *others)))))
    return Change(authority.name, "the successor signs", write, (folder / "next.key", folder / "next.crt"))


def _drop(folder: Path, authority: Authority, current: Phase) -> Change | None:
    if current is Phase.TRUSTED:
        raise FleetError(
            f"{folder}: the CA that would be dropped still signs everything; first run {COMMAND.format('reissue')}"
        )
    signer, *old = _bundle(folder)
    if not old:
        return None
    return Change(authority.name, "the old CA counts no more", (_file(folder / "ca.crt", _pem(signer)),))


def _made(
    folder: Path, authority: Authority, now: datetime, ca_days: int
) -> tuple[tuple[files.FileSpec, ...], x509.Certificate]:
    """Key and certificate of a successor; those that a killed run has left are kept."""
    successor = _successor(folder)
    if successor is not None:
        return (), successor
    key_file = folder / "next.key"
    key = load_key(key_file, key_file.read_bytes()) if key_file.exists() else ec.generate_private_key(ec.SECP256R1())
    successor = make_authority(authority, key, now, ca_days)
    return (_file(key_file, pem_of_key(key)), _file(folder / "next.crt", _pem(successor))), successor


def _signer(folder: Path, made: Sequence[files.FileSpec]) -> tuple[files.FileSpec, ...]:
    """The successor's key in the signer's place. A killed run may have brought it there and removed next.key."""
    key_file = folder / "next.key"
    if not made and not key_file.exists():
        return ()
    return (_file(folder / "ca.key", made[0].content if made else key_file.read_bytes()),)


def _successor(folder: Path) -> x509.Certificate | None:
    path = folder / "next.crt"
    return _certificates(path)[0] if path.exists() else None


def _bundle(folder: Path) -> list[x509.Certificate]:
    if not (folder / "ca.crt").exists():
        raise FleetError(f"{folder}/ca.crt does not exist; run site.yml first, which makes it")
    return _certificates(folder / "ca.crt")


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        raise FleetError(f"{path} is not a certificate; put it back from your backup") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _file(path: Path, content: bytes) -> files.FileSpec:
    return files.FileSpec(dest=str(path), content=content, mode=0o600, sensitive=True)
