"""What a snapshot of etcd holds, read from its database without an etcd: the newest value of each key of a prefix.

The file is a bbolt database (go.etcd.io/bbolt, page.go and meta.go): pages of a B+ tree, little-endian. In its bucket
`key` etcd has one protobuf message KeyValue for each change of a key, in the order of revisions; a removal's key ends
with `t` (go.etcd.io/etcd, server/storage/mvcc). Standard library only.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

_MAGIC = 0xED0CDAED
_BRANCH, _LEAF = 0x01, 0x02
_PAGE = struct.Struct("<QHHI")  # id, flags, count, overflow
_META = struct.Struct(
    "<IIIIQQQQQQ"
)  # magic, version, page size, flags, root, sequence, freelist, pages, txid, checksum
_BRANCH_ELEMENT = struct.Struct("<IIQ")  # position, key size, page
_LEAF_ELEMENT = struct.Struct("<IIII")  # flags, position, key size, value size
_REVISION_BYTES = 17
_PAGE_SIZES = tuple(1 << bits for bits in range(9, 17))
# FNV-1a of 64 bits, over what stands before the checksum.
_FNV_OFFSET, _FNV_PRIME, _SUMMED_BYTES = 0xCBF29CE484222325, 0x100000001B3, _META.size - 8


def newest_values(database: Path, prefix: bytes) -> dict[bytes, bytes]:
    """The value of each key below the prefix, as of the database's last change. Raises FleetError."""
    try:
        with database.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size, root = _root(data)
            bucket = next((value for key, value in _leaves(data, size, root) if key == b"key"), None)
            if bucket is None:
                raise ValueError("it has no bucket of keys")
            found: dict[bytes, bytes] = {}
            for revision, message in _leaves(data, size, struct.unpack_from("<Q", bucket)[0]):
                key, value = _key_value(message, prefix)
                if len(revision) > _REVISION_BYTES:
                    found.pop(key, None)
                elif key.startswith(prefix):
                    found[key] = value
            return found
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise FleetError(f"{database} cannot be read as a database of etcd ({error})") from None


def _root(data: mmap.mmap) -> tuple[int, int]:
    """Page size, and the page of the tree's root in the newer of the two whole meta pages."""
    found = []
    for start in (0, *_PAGE_SIZES):
        if len(data) < start + _PAGE.size + _META.size:
            break
        meta = _META.unpack_from(data, start + _PAGE.size)
        magic, size, root, txid, checksum = meta[0], meta[2], meta[4], meta[8], meta[9]
        summed = data[start + _PAGE.size : start + _PAGE.size + _SUMMED_BYTES]
        if magic == _MAGIC and start in (0, size) and _fnv(summed) == checksum:
            found.append((txid, size, root))
    if not found:
        raise ValueError("neither of its first two pages is whole")
    _, size, root = max(found)
    return size, root


def _fnv(data: bytes) -> int:
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def _leaves(data: mmap.mmap, size: int, page: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry below a page, in order."""
    start = page * size
    _, flags, count, _ = _PAGE.unpack_from(data, start)
    first = start + _PAGE.size
    if flags & _BRANCH:
        for number in range(count):
            below = _BRANCH_ELEMENT.unpack_from(data, first + number * _BRANCH_ELEMENT.size)[2]
            yield from _leaves(data, size, below)
    elif flags & _LEAF:
        for number in range(count):
            at = first + number * _LEAF_ELEMENT.size
            _, position, key_bytes, value_bytes = _LEAF_ELEMENT.unpack_from(data, at)
            key = at + position
            yield data[key : key + key_bytes], data[key + key_bytes : key + key_bytes + value_bytes]
    else:
        raise ValueError(f"page {page} is none of its tree")


def _key_value(message: bytes, prefix: bytes) -> tuple[bytes, bytes]:
    """Key and value of a KeyValue message; without the value where the key is not of the prefix."""
    key = value = b""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            _, at = _varint(message, at)
        elif tag & 7 == 2:
            length, at = _varint(message, at)
            if tag >> 3 == 1:
                key = message[at : at + length]
                if not key.startswith(prefix):
                    return key, b""
            elif tag >> 3 == 5:
                value = message[at : at + length]
            at += length
        else:
            raise ValueError("an entry is no KeyValue")
    return key, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
