"""Kernel log records as the kernel writes them to /dev/kmsg, and the XID and SXid lines among them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
# The XID of a GPU that has fallen off the bus.
FALLEN = 79
# What the driver also says without the number of an XID (kernel-open/nvidia: nv-pci.c and nv.c of NVIDIA's open
# modules): of a GPU that is not there any more when it is looked for, and of one that it could not start.
_FALLEN_TEXT = re.compile(r"\bfallen off the bus\b", re.IGNORECASE)
_UNSTARTED_TEXT = re.compile(r"\b(?:RmInitAdapter failed|rm_init_adapter failed|probe routine failed)\b", re.IGNORECASE)
_DRIVER_LINE = re.compile(r"^NVRM:", re.IGNORECASE)
# "GPU 0000:43:00.0", "GPU at PCI:0000:43:00".
_GPU_AT = re.compile(r"\bGPU (?:at )?(?:PCI:)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)", re.IGNORECASE)
# A record may have several lines, which /dev/kmsg writes with their newlines escaped.
_NEXT_LINE = re.compile(r"(?:\\x0a|\n)\s*", re.IGNORECASE)


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

    `xid` is UNREADABLE, and `pci_bus_id` "", for a line of which only that it is one can be read. `unstarted`: no XID,
    but the driver's word that it could not start the GPU, of which `pci_bus_id` is "" where no line names it.
    """

    xid: int
    pci_bus_id: str
    pid: int | None
    text: str
    monotonic_us: int
    sxid: bool
    unstarted: bool = False


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


class EventReader:
    """Reads the records of one log in their order: XIDs and SXids, and what the driver says without a number."""

    def __init__(self) -> None:
        self._named = ("", 0)  # the GPU that the driver named last, and when
        self._told: dict[str, int] = {}  # when a GPU was last told lost or not started, by address

    def read(self, record: Record) -> tuple[XidEvent, ...]:
        """The events of the next record; most have none."""
        if record.facility != KERN_FACILITY:
            return ()
        lines = _NEXT_LINE.split(record.text) if _NEXT_LINE.search(record.text) else [record.text]
        numbered = tuple(event for line in lines if (event := xid_event(replace(record, text=line))))
        for event in numbered:
            if event.xid == FALLEN and not event.sxid:
                self._told[event.pci_bus_id] = record.monotonic_us
        if numbered or not _DRIVER_LINE.match(record.text):
            return numbered
        told = self._without_number(record, " ".join(lines))
        return () if told is None else (told,)

    def _without_number(self, record: Record, text: str) -> XidEvent | None:
        now_us = record.monotonic_us
        if named := _GPU_AT.search(text):
            self._named = (normal_bus_id(named[1]) or named[1].lower(), now_us)
        fallen = bool(_FALLEN_TEXT.search(text))
        if not fallen and not _UNSTARTED_TEXT.search(text):
            return None
        # The address may stand in a record before this one; then it is no other GPU's.
        bus_id = self._named[0] if now_us - self._named[1] <= SAME_LINE_US else ""
        alike = self._told.values() if not bus_id else [at for bus, at in self._told.items() if bus == bus_id]
        if any(now_us - at_us <= SAME_LINE_US for at_us in alike):
            return None
        self._told[bus_id] = now_us
        return XidEvent(FALLEN if fallen else UNREADABLE, bus_id, None, text, now_us, sxid=False, unstarted=not fallen)


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
