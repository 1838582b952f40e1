"""Certificates in PEM files, looked at without a library: which keys they belong to and which signed them.

Standard library only, because it runs on the hosts. All certificates of a fleet carry the two identifiers of RFC 5280,
4.2.1.1 and 4.2.1.2, in the form with 20 bytes: those of Muster and those that kube-controller-manager signs.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
# DER: the extension's object identifier, then an OCTET STRING around the identifier's 20 bytes.
_SUBJECT_KEY = bytes.fromhex("0603551d0e04160414")
_AUTHORITY_KEY = bytes.fromhex("0603551d23041830168014")
_KEY_ID_BYTES = 20
# A bundle of all public CAs has 230 KiB.
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Certificate:
    """One certificate: its DER, the identifier of its key, and that of the key that signed it (empty: unknown)."""

    der: bytes
    key_id: bytes
    signer_id: bytes


@dataclass(frozen=True)
class Exchange:
    """A CA that takes another's place."""

    name: str
    old: Certificate
    new: Certificate


def certificates(text: str) -> tuple[Certificate, ...]:
    """All certificates of a PEM text, in its order; what is not base64 is passed over."""
    found = []
    for body in _BLOCK.findall(text):
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error:
            continue
        found.append(Certificate(der, _after(der, _SUBJECT_KEY), _after(der, _AUTHORITY_KEY)))
    return tuple(found)


def first(text: str) -> Certificate | None:
    """The first certificate of a PEM text: the signer in a CA's file, the leaf in a chain."""
    return next(iter(certificates(text)), None)


def lacking(files: Sequence[tuple[Path, str]], exchange: Exchange) -> list[str]:
    """Files that trust the old CA and not the new one."""
    ders = [(path, {one.der for one in certificates(text)}) for path, text in files]
    return [str(path) for path, held in ders if exchange.old.der in held and exchange.new.der not in held]


def signed_by_old(files: Sequence[tuple[Path, str]], exchange: Exchange) -> list[str]:
    """Files with a certificate that the old CA has signed; its own is none."""
    return [
        str(path)
        for path, text in files
        if any(one.signer_id == exchange.old.key_id and one.der != exchange.old.der for one in certificates(text))
    ]


def of_new(files: Sequence[tuple[Path, str]], exchange: Exchange) -> list[str]:
    """Files that trust the new CA, or have a certificate that it has signed."""
    return [
        str(path)
        for path, text in files
        if any(one.der == exchange.new.der or one.signer_id == exchange.new.key_id for one in certificates(text))
    ]


def files_below(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The regular files with a certificate below these folders, and their text; what is gone meanwhile is left out."""
    paths = (path for folder in folders for path in sorted(folder.rglob("*")) if not path.is_symlink())
    return with_certificates(paths)


def with_certificates(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Those of these files that hold a certificate, and their text; one that is not there, or is huge, is left out."""
    for path in paths:
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
                continue
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        if "-----BEGIN CERTIFICATE-----" in text:
            yield path, text


def _after(der: bytes, marker: bytes) -> bytes:
    _, found, rest = der.partition(marker)
    return rest[:_KEY_ID_BYTES] if found else b""
