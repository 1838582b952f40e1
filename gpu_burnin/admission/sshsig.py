"""SSH signatures of ed25519 host keys, checked without a process for each: the admitter checks thousands at a start.

The format is OpenSSH's PROTOCOL.sshsig, the mathematics are cryptography's. Nodes sign and check with ssh-keygen; both
ways are held against each other in tests/unit/admission/test_sshsig.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gpu_burnin.api.evidence import NAMESPACE, public_key
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.known_hosts import EVIDENCE_KEY_TYPE

_MAGIC = b"SSHSIG"
_VERSION = 1
_HASHES = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}
_ARMOR = re.compile(r"-----BEGIN SSH SIGNATURE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END SSH SIGNATURE-----\s*")
_KEY_TYPE = EVIDENCE_KEY_TYPE.encode("ascii")


def signature_holds(data: bytes, signature: str, public_key_line: str, namespace: str = NAMESPACE) -> bool:
    """Whether `signature` is one of `data` by exactly this key for this namespace: what it was signed for.

    Raises GpuBurninError for a key line without an ed25519 key.
    """
    kind, blob = public_key(public_key_line).split()
    if kind != EVIDENCE_KEY_TYPE:
        raise GpuBurninError(f"evidence is checked with {EVIDENCE_KEY_TYPE} keys, not {kind}; pin the host's own")
    key = base64.b64decode(blob)
    try:
        key_type, raw_key = _strings(key, 2)
        own, signed_for, reserved, algorithm, signed = _strings(_unwrapped(signature), 5)
        signature_type, raw_signature = _strings(signed, 2)
        if (key_type, signature_type, own, signed_for) != (_KEY_TYPE, _KEY_TYPE, key, namespace.encode("ascii")):
            return False
        message = b"".join(
            _string(part) for part in (signed_for, reserved, algorithm, _HASHES[algorithm](data).digest())
        )
        Ed25519PublicKey.from_public_bytes(raw_key).verify(raw_signature, _MAGIC + message)
    except (ValueError, KeyError, InvalidSignature):
        return False
    return True


def _unwrapped(signature: str) -> bytes:
    """What follows magic and version in the armored signature; raises ValueError."""
    armored = _ARMOR.fullmatch(signature)
    if armored is None:
        raise ValueError("not an armored SSH signature")
    try:
        blob = base64.b64decode("".join(armored[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    head = _MAGIC + struct.pack(">I", _VERSION)
    if not blob.startswith(head):
        raise ValueError("not an SSH signature of version 1")
    return blob[len(head) :]


def _strings(blob: bytes, count: int) -> list[bytes]:
    """Exactly `count` strings as RFC 4251 writes them, and nothing behind; raises ValueError."""
    found = []
    for _ in range(count):
        if len(blob) < 4:
            raise ValueError("cut short")
        size_bytes = struct.unpack(">I", blob[:4])[0]
        if len(blob) < 4 + size_bytes:
            raise ValueError("cut short")
        found.append(blob[4 : 4 + size_bytes])
        blob = blob[4 + size_bytes :]
    if blob:
        raise ValueError("more than there should be")
    return found


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
