"""Signing as ssh-keygen -Y sign does, in this process: for thousands of statements at a time."""

from __future__ import annotations

import base64
import hashlib
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpu_burnin.api.evidence import NAMESPACE

_KEY_TYPE, _HASH = b"ssh-ed25519", b"sha512"


def public_line(key: Ed25519PrivateKey) -> str:
    """`ssh-ed25519 AAAA...`."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def sign(data: bytes, key: Ed25519PrivateKey, namespace: str = NAMESPACE) -> str:
    """An armored signature of `data`, see OpenSSH's PROTOCOL.sshsig."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signed_for = namespace.encode()
    message = b"SSHSIG" + b"".join(map(_string, (signed_for, b"", _HASH, hashlib.sha512(data).digest())))
    signature = _string(_KEY_TYPE) + _string(key.sign(message))
    parts = (_string(_KEY_TYPE) + _string(raw), signed_for, b"", _HASH, signature)
    text = base64.b64encode(b"SSHSIG" + struct.pack(">I", 1) + b"".join(map(_string, parts))).decode()
    lines = (text[at : at + 70] for at in range(0, len(text), 70))
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""])


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
