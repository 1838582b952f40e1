"""Entries of the systemd journal with fields of their own, by its native protocol. Standard library only.

The protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL. docs/reference/journal.md is made of what is here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
# Set by systemd where it connects a unit's output with the journal: DEVICE:INODE of that stream.
_STREAM = "JOURNAL_STREAM"
_NAME, _MEANING = "name", "meaning"


class Priority(IntEnum):
    """Of syslog(3)."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def _field(name: str, meaning: str) -> str:
    made: str = field(default="", metadata={_NAME: name, _MEANING: meaning})
    return made


@dataclass(frozen=True)
class Entry:
    """One entry. A field that is "" is left out; `code` may hold several, apart by spaces, each a field of its own."""

    message: str
    program: str
    priority: Priority = Priority.INFO
    kind: str = _field(
        "MUSTER_KIND",
        "what the entry is: `transition` (a node's state changed), `message` (a sentence of the admitter), `agent` "
        "(one of the node's agent), `run_began` and `run_ended` (a burn-in)",
    )
    node: str = _field("MUSTER_NODE", "the node's name in the cluster and in the inventory")
    run: str = _field("MUSTER_RUN", "the burn-in's run id, as in its report")
    code: str = _field("MUSTER_CODE", "a [reason code](reasons.md), one field for each where an entry has several")
    verdict: str = _field("MUSTER_VERDICT", "`PASS`, `FAIL` or `INCONCLUSIVE` of a burn-in that ended")
    level: str = _field("MUSTER_LEVEL", "the burn-in's level: `quick`, `standard` or `extended`")
    before: str = _field("MUSTER_FROM", "of a transition: the state before; a new node has none")
    after: str = _field("MUSTER_TO", "of a transition: the state after")
    who: str = _field("MUSTER_WHO", "of a transition: who caused it, the admitter or a person")
    pod: str = _field("MUSTER_POD", "the pod that it is about, as NAMESPACE/NAME")


# The fields that entries have, with what they mean.
FIELDS: Mapping[str, str] = {
    one.metadata[_NAME]: one.metadata[_MEANING] for one in fields(Entry) if _NAME in one.metadata
}


def datagram(entry: Entry) -> bytes:
    """An entry as the journal takes it."""
    return b"".join(_part(name, value) for name, value in _parts(entry))


def _parts(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "MESSAGE", entry.message
    yield "PRIORITY", str(int(entry.priority))
    yield "SYSLOG_IDENTIFIER", entry.program
    for one in fields(entry):
        if _NAME in one.metadata and (value := getattr(entry, one.name)):
            name = one.metadata[_NAME]
            yield from ((name, code) for code in value.split()) if one.name == "code" else ((name, value),)


def _part(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


def send(entry: Entry, path: Path = SOCKET) -> bool:
    """Whether the journal took the entry. It waits for nobody: a full journal, and none, is False."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(datagram(entry), str(path))
        return True
    return False


def is_output(number: int = 1) -> bool:
    """Whether a stream of this process, standard output unless another is given, is the journal's."""
    with contextlib.suppress(OSError):
        found = os.fstat(number)
        return os.environ.get(_STREAM) == f"{found.st_dev}:{found.st_ino}"
    return False


def is_unit() -> bool:
    """Whether systemd has started this process as a unit's, whose output may go elsewhere."""
    return "INVOCATION_ID" in os.environ
