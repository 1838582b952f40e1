"""A small database as etcd keeps its keys in: one page of entries below one of buckets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PAGE_BYTES = 65_536


def database(changes: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The file after these changes of keys, in this order; None removes the key."""
    entries = []
    for number, (key, value) in enumerate(changes):
        revision = struct.pack(">Q", number + 2) + b"_" + struct.pack(">Q", 0) + (b"t" if value is None else b"")
        message = _field(1, key.encode()) + b"\x10\x02" + (_field(5, value) if value is not None else b"")
        entries.append((revision, message))
    buckets = [(b"auth", struct.pack("<QQ", 5, 0)), (b"key", struct.pack("<QQ", 4, 0))]
    pages = [_meta(0, 1), _meta(1, 2), _page(2, 0x10, b""), _leaf(3, buckets), _leaf(4, entries), _leaf(5, [])]
    return b"".join(page.ljust(PAGE_BYTES, b"\0") for page in pages)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _page(number: int, flags: int, content: bytes, count: int = 0) -> bytes:
    return struct.pack("<QHHI", number, flags, count, 0) + content


def _leaf(number: int, entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    heads, data = b"", b""
    for place, (key, value) in enumerate(entries):
        position = 16 * (len(entries) - place) + len(data)
        heads += struct.pack("<IIII", 0, position, len(key), len(value))
        data += key + value
    return _page(number, 0x02, heads + data, len(entries))


def _meta(number: int, txid: int) -> bytes:
    content = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, PAGE_BYTES, 0, 3, 0, 2, 6, txid)
    checksum = 0xCBF29CE484222325
    for byte in content:
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return _page(number, 0x04, content + struct.pack("<Q", checksum))
