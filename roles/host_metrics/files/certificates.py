#!/usr/bin/env python3
"""Tell until when this host's certificates are valid, as numbers for node_exporter's textfile collector.

A file that was there once and is gone, or holds no certificate, is told too. Keys are not read: of a file that
holds both, nothing behind the certificate. Run by muster-certificates.timer. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MISSING, UNREADABLE, EMPTY = "missing", "unreadable", "no_certificate"
_MOST_BYTES = 1 << 20
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
# Tags of RFC 5280, 4.1.2.5: UTCTime and GeneralizedTime, in seconds and always of UTC.
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_NAMED = re.compile(r'^muster_certificate_(?:expires_timestamp_seconds|unreadable)\{file="([^"]+)"', re.MULTILINE)


class NoCertificate(Exception):
    """The bytes are none."""


@dataclass(frozen=True)
class Validity:
    """From when until when, in seconds since 1970."""

    issued_s: int
    expires_s: int


@dataclass(frozen=True)
class Look:
    """What was found in a file: the certificate that ends first, or the problem."""

    file: str
    validity: Validity | None = None
    problem: str = ""


def look(file: str) -> Look:
    """Read a file of one certificate or more."""
    try:
        found = [validity(der) for der in certificates(Path(file))]
    except FileNotFoundError:
        return Look(file, problem=MISSING)
    except (OSError, NoCertificate):
        return Look(file, problem=UNREADABLE)
    return Look(file, min(found, key=lambda one: one.expires_s)) if found else Look(file, problem=EMPTY)


def certificates(path: Path) -> Iterator[bytes]:
    """The certificates (DER) before the first thing that is none. Raises OSError and NoCertificate."""
    # Unbuffered: it is read byte by byte, and so not a byte of a key that comes behind.
    with path.open("rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NoCertificate(f"{path} is not a regular file")
        inside, left = False, _MOST_BYTES
        lines: list[bytes] = []
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            line = line.strip()
            if line == _BEGIN:
                lines, inside = [], True
            elif line == _END and inside:
                inside = False
                yield _decoded(b"".join(lines))
            elif line.startswith(b"-----BEGIN"):
                break
            elif inside:
                lines.append(line)
        if inside:
            raise NoCertificate(f"{path} ends within a certificate")


def validity(der: bytes) -> Validity:
    """notBefore and notAfter (RFC 5280, 4.1). Raises NoCertificate."""
    certificate = _inside(der, _SEQUENCE)
    fields = _elements(_inside(certificate, _SEQUENCE))
    try:
        tag, _ = field = next(fields)
        if tag == _VERSION:
            field = next(fields)
        if field[0] != _INTEGER:
            raise NoCertificate("no serial number")
        next(fields), next(fields)  # algorithm and issuer
        tag, content = next(fields)
        issued, expires = _elements(content)
    except (StopIteration, ValueError) as error:
        raise NoCertificate("too few fields") from error
    if tag != _SEQUENCE:
        raise NoCertificate("no validity")
    return Validity(_seconds(*issued), _seconds(*expires))


def page(looks: Sequence[Look], now_s: float) -> str:
    """The numbers."""
    lines = [
        "# HELP muster_certificate_expires_timestamp_seconds When the first of the certificates of this file ends.",
        "# TYPE muster_certificate_expires_timestamp_seconds gauge",
        *(f"{_series('expires_timestamp_seconds', one)} {one.validity.expires_s}" for one in looks if one.validity),
        "# HELP muster_certificate_issued_timestamp_seconds Since when it counts.",
        "# TYPE muster_certificate_issued_timestamp_seconds gauge",
        *(f"{_series('issued_timestamp_seconds', one)} {one.validity.issued_s}" for one in looks if one.validity),
        "# HELP muster_certificate_unreadable 1 for a file that is gone or holds no certificate.",
        "# TYPE muster_certificate_unreadable gauge",
        *(f"{_series('unreadable', one, one.problem)} 1" for one in looks if one.problem),
        "# HELP muster_certificates_checked_timestamp_seconds When they were last looked at.",
        "# TYPE muster_certificates_checked_timestamp_seconds gauge",
        f"muster_certificates_checked_timestamp_seconds {now_s:.0f}",
    ]
    return "\n".join(lines) + "\n"


def without_files_to_come(before: str, looks: Sequence[Look]) -> list[Look]:
    """Without the files that have not come yet: a node that is held has none of kubelet's."""
    known = set(_NAMED.findall(before))
    return [one for one in looks if one.problem != MISSING or one.file in known]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 when the numbers cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="file of numbers, in node_exporter's folder")
    parser.add_argument("files", nargs="+", metavar="FILE", help="certificates (PEM)")
    options = parser.parse_args(arguments)
    output: Path = options.output
    try:
        before = output.read_text() if output.exists() else ""
        _write(output, page(without_files_to_come(before, [look(file) for file in options.files]), time.time()))
    except OSError as error:
        print(f"{output}: cannot be written ({error.strerror}); is node_exporter installed?", file=sys.stderr)
        return 2
    return 0


def _series(name: str, one: Look, problem: str = "") -> str:
    more = f',problem="{problem}"' if problem else ""
    return f'muster_certificate_{name}{{file="{one.file}"{more}}}'


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise NoCertificate("no base64") from error


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element (DER: X.690, 8.1)."""
    while data:
        if len(data) < 2:
            raise NoCertificate("half an element")
        tag, size, start = data[0], data[1], 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[2:start], "big")
        if len(data) < start + size:
            raise NoCertificate("half an element")
        yield tag, data[start : start + size]
        data = data[start + size :]


def _inside(data: bytes, wanted: int) -> bytes:
    tag, content = next(_elements(data), (0, b""))
    if tag != wanted:
        raise NoCertificate(f"tag {tag} and not {wanted}")
    return content


def _seconds(tag: int, content: bytes) -> int:
    try:
        when = datetime.strptime(content.decode("ascii"), _TIMES[tag])
    except (KeyError, ValueError) as error:
        raise NoCertificate("no time") from error
    return int(when.replace(tzinfo=UTC).timestamp())


def _write(path: Path, text: str) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


if __name__ == "__main__":
    sys.exit(main())
