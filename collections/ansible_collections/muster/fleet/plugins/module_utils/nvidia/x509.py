"""What a certificate says of itself, without a library: the Python of a host has none for it."""

from __future__ import annotations

_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0


def serial(certificate: bytes) -> str:
    """The serial number of a certificate in DER, in hexadecimal digits without leading zeros (RFC 5280, 4.1).

    Raises ValueError for anything else.
    """
    tag, outer, _ = _element(certificate)
    inner_tag, inner, _ = _element(outer)
    if (tag, inner_tag) != (_SEQUENCE, _SEQUENCE):
        raise ValueError("it is no certificate in DER")
    tag, value, rest = _element(inner)
    if tag == _VERSION:
        tag, value, rest = _element(rest)
    if tag != _INTEGER:
        raise ValueError("it has no serial number where a certificate has one")
    return f"{int.from_bytes(value, 'big'):x}"


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The first element of DER (X.690, 8.1): its tag, its content, and what follows it."""
    if len(data) < 2:
        raise ValueError("it ends too early")
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if len(data) < start + size:
        raise ValueError("it ends too early")
    return data[0], data[start : start + size], data[start + size :]
