"""Fingerprints of OpenPGP keys, without gpg: a host whose apt has gpgv alone cannot tell them (RFC 4880, 12.2)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\n]*: [^\n]*\n)*\r?\n?(?P<body>.*?)(?:\n=[^\n]*)?"
    r"\n-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)
_PUBLIC_KEY = 6
_VERSION_4 = 4


def fingerprints(armoured: str) -> tuple[str, ...]:
    """The fingerprints of the primary keys, 40 upper-case hexadecimal digits each. Raises ValueError."""
    blocks = [match["body"] for match in _BLOCK.finditer(armoured)]
    if not blocks:
        raise ValueError("there is no PUBLIC KEY BLOCK")
    try:
        packets = [packet for body in blocks for packet in _packets(base64.b64decode("".join(body.split())))]
    except (binascii.Error, IndexError) as error:
        raise ValueError(f"the key block is damaged: {error}") from error
    keys = [body for tag, body in packets if tag == _PUBLIC_KEY]
    if any(body[:1] != bytes([_VERSION_4]) for body in keys) or not keys:
        raise ValueError("there is no key of version 4")
    return tuple(
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
        for body in keys
    )


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each packet (RFC 4880, 4.2). Raises IndexError for one that is cut off."""
    at = 0
    while at < len(data):
        head = data[at]
        if head & 0x40:
            tag, (size, at) = head & 0x3F, _new_length(data, at + 1)
        else:
            tag, width = head >> 2 & 0xF, 1 << (head & 3)
            size, at = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
        if at + size > len(data):
            raise IndexError("a packet is cut off")
        yield tag, data[at : at + size]
        at += size


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return (first - 192 << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise IndexError("a packet has no length")
