"""Kernel log records as the kernel writes them to /dev/kmsg, and the XID and SXid lines among them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.system.quantities import count
from gpu_burnin.telemetry.pci import normal_bus_id

KERN_FACILITY = 0
# The journal stamps some kernel messages later than the kernel: the same text within this time is the same line.
SAME_LINE_US = 1_000_000
# The code of a line that says XID or SXID and not which: NVIDIA gives this number to none.
UNREADABLE = 0
# "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', ..."; with MIG "(PCI:0000:91:00 GPU-I:05)".
_XID = re.compile(r"^NVRM:\s+Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\):\s*(\d{1,9})\b")
# "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up".
_SXID = re.compile(r"^nvidia-nvswitch\d*:\s+SXid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\):\s*(\d{1,9})\b")
_PID = re.compile(r"\bpid='?(\d{1,9})\b")
# What begins so is about an XID, whatever follows.
_SOME_XID = re.compile(r"^(?:NVRM:\s*Xid|nvidia-nvswitch\d*:\s*(SXid))\b", re.IGNORECASE)
_MOST_DIGITS = 20  # of 64 bits


@dataclass(frozen=True)
class Record:
    """One record. `sequence` counts up by one for each message of the kernel, None where unknown."""

    facility: int
    sequence: int | None
    monotonic_us: int
    text: str


@dataclass(frozen=True)
class XidEvent:
    """An XID, or an SXid of an NVSwitch. `monotonic_us` is the time since boot in microseconds.

    `xid` is UNREADABLE, and `pci_bus_id` "", for a line of which only that it is one can be read.
    """

    xid: int
    pci_bus_id: str
    pid: int | None
    text: str
    monotonic_us: int
    sxid: bool


def parse_record(line: str) -> Record | None:
    """Read "prefix,sequence,microseconds,flags;text"; None for anything else, such as continuation lines."""
    head, separator, text = line.partition(";")
    parts = head.split(",")
    if not separator or len(parts) < 3 or not all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts[:3]):
        return None
    prefix, sequence, microseconds = (int(part) for part in parts[:3])
    return Record(prefix >> 3, sequence, microseconds, text.split("\n", 1)[0].rstrip("\n"))


def xid_event(record: Record) -> XidEvent | None:
    """The event in a record; None for other texts, and for records that user space wrote."""
    if record.facility != KERN_FACILITY:
        return None
    for pattern, sxid in ((_XID, False), (_SXID, True)):
        match = pattern.match(record.text)
        if match:
            pid = _PID.search(record.text)
            return XidEvent(
                xid=int(match[2]),
                pci_bus_id=normal_bus_id(match[1]) or match[1].lower(),
                pid=int(pid[1]) if pid else None,
                text=record.text,
                monotonic_us=record.monotonic_us,
                sxid=sxid,
            )
    if some := _SOME_XID.match(record.text):
        return XidEvent(UNREADABLE, "", None, record.text, record.monotonic_us, sxid=bool(some[1]))
    return None


def count_gaps(records: Iterable[Record], first: int | None = None) -> int:
    """Messages that are missing by the sequence numbers; numbering that starts again counts as one.

    `first` is the number the first record should have (0 since boot), None when any will do.
    """
    expected, gaps = first, 0
    for record in records:
        if record.sequence is None:
            continue
        if expected is not None and record.sequence != expected:
            gaps += max(record.sequence - expected, 1)
        expected = record.sequence + 1
    return gaps


def log_summary(xids: int, lost: int, *, alive: bool = True) -> str:
    """What a kernel log told, in words: "no XID seen, at least 3,910 messages lost". What was not read to its end
    (`alive` False), or has lost messages, may have held more."""
    seen = count(xids, "XID") if xids else "no XID"
    if not alive:
        seen = f"{seen} seen, more may be missing" if xids else "unknown"
    elif lost:
        seen = f"{seen} seen"
    return f"{seen}, {lost_messages(lost)}" if lost else seen


def lost_messages(lost: int) -> str:
    """How many messages of the kernel are lost, as far as their numbers tell: "at least 3,910 messages lost"."""
    return f"at least {count(lost, 'message')} lost"
