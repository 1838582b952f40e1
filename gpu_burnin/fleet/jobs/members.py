"""Who is in which group, by the client certificates of the kubeconfigs that the controller keeps."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID


def members(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """User names by group (a certificate's organizations), and the kubeconfigs of the folder that cannot be read."""
    found: dict[str, set[str]] = {}
    notes = []
    for path in sorted(folder.glob("*.kubeconfig")):
        try:
            document: Any = yaml.safe_load(path.read_text())
            certificate = _certificate(document["users"][0]["user"], path.parent)
            subject = x509.load_pem_x509_certificate(certificate).subject
        except (OSError, ValueError, KeyError, IndexError, TypeError, yaml.YAMLError) as error:
            notes.append(f"{path}: no client certificate can be read, whose groups are unknown ({error})")
            continue
        for name in _values(subject, NameOID.COMMON_NAME):
            for group in _values(subject, NameOID.ORGANIZATION_NAME):
                found.setdefault(group, set()).add(name)
    return {group: sorted(names) for group, names in found.items()}, notes


def _certificate(user: Mapping[str, str], folder: Path) -> bytes:
    if "client-certificate-data" in user:
        return base64.b64decode(user["client-certificate-data"])
    return (folder / user["client-certificate"]).read_bytes()


def _values(subject: x509.Name, kind: x509.ObjectIdentifier) -> list[str]:
    return [str(one.value) for one in subject.get_attributes_for_oid(kind)]
