"""XIDs and SXids since boot from the kernel log. It reports when no source is alive, and when messages are lost."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.telemetry.kmsg import SAME_LINE_US, EventReader, Record, XidEvent, count_gaps, parse_record

AUTO = "auto"
KMSG_DEVICE = Path("/dev/kmsg")
# journald's own message "Missed N kernel messages" (sd-messages.h: SD_MESSAGE_JOURNAL_MISSED).
_JOURNAL_MISSED = "e9bf28e6e834481bb6f48f548ad13606"
_JOURNAL_TIMEOUT_S = 30.0
_JOURNAL_FIELDS = "MESSAGE,MESSAGE_ID,SYSLOG_FACILITY,_TRANSPORT,_SOURCE_MONOTONIC_TIMESTAMP"
# The first kernel message of a boot carries time 0; a journal that starts later has lost the beginning.
_BOOT_START_US = 1_000_000
_RECORD_SIZE_BYTES = 8192
SPEAKS_OF_XID = "xid ("


class KernelLogError(GpuBurninError):
    """The kernel log specification makes no sense."""


@dataclass(frozen=True)
class SourceReading:
    """What one source gave: `alive` when it can be trusted to show an XID; `gaps` messages lost since boot.

    Its first and last messages are of the times `first_us` and `last_us` (microseconds since boot).
    """

    name: str
    alive: bool
    events: tuple[XidEvent, ...] = ()
    gaps: int = 0
    first_us: int = 0
    last_us: int = 0


class KernelLog(ABC):
    """Kernel messages since boot. `simulated`: a file stands in for the kernel's log."""

    simulated = False

    @abstractmethod
    def read(self, timeout_s: float = _JOURNAL_TIMEOUT_S) -> tuple[tuple[XidEvent, ...], int, str]:
        """All events since boot, the number of messages known to be lost, and the live sources.

        Each call reads from the start, so that the last of two calls has everything of both. Sources are
        separated by commas; "" means that none is alive and nothing is known. A source that does not answer
        within `timeout_s` is not alive.
        """


def open_kernel_log(spec: str, *, writes: bool = True) -> KernelLog:
    """The log for "auto" or for the path of a regular file in the format of /dev/kmsg.

    `writes` False: no line of our own is written into /dev/kmsg to see that it comes back. Raises KernelLogError.
    """
    path = Path(spec)
    if spec == AUTO or path.is_char_device():
        return SystemLog(writes)
    if not path.is_absolute():
        raise KernelLogError(f"kernel_log {spec!r}: write auto or an absolute path of a kmsg-format file")
    return FileLog(path)


class FileLog(KernelLog):
    """A regular file of kmsg lines, as the lab's hosts have; other lines in it are passed over, unless they name an
    XID: the content of such a line is lost."""

    simulated = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before: os.stat_result | None = None
        self._cuts = 0

    def read(self, timeout_s: float = _JOURNAL_TIMEOUT_S) -> tuple[tuple[XidEvent, ...], int, str]:
        """The whole file; one that is missing or holds no record is a dead source. One that was cut short or replaced
        has a gap."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                now = os.fstat(file.fileno())
                lines = [(line, parse_record(line)) for line in file]
        except OSError:
            return (), 0, ""
        records = [record for _, record in lines if record]
        torn = sum(record is None and SPEAKS_OF_XID in line.lower() for line, record in lines)
        if (before := self._before) and (now.st_ino != before.st_ino or now.st_size < before.st_size):
            self._cuts += 1
        self._before = now
        return _events(records), count_gaps(records) + self._cuts + torn, str(self.path) if records else ""


class SystemLog(KernelLog):
    """The journal and /dev/kmsg together: the journal reaches back further, the device is never behind."""

    def __init__(self, writes: bool = True) -> None:
        self._writes = writes

    def read(self, timeout_s: float = _JOURNAL_TIMEOUT_S) -> tuple[tuple[XidEvent, ...], int, str]:
        """Both sources, merged."""
        return merge((read_journal(partial(_run, timeout_s=timeout_s)), read_kmsg_device(writes=self._writes)))


def merge(readings: Iterable[SourceReading]) -> tuple[tuple[XidEvent, ...], int, str]:
    """Events of all live sources, each once; one source without gaps is enough to have seen everything.

    But not one that ended before another begins: a journal that nobody writes any more has gaps that it cannot show.
    """
    alive = [reading for reading in readings if reading.alive]
    found: list[XidEvent] = []
    last_us: dict[str, int] = {}  # of each text, so that a storm of lines costs no more a line than one
    for event in sorted((e for r in alive for e in r.events), key=lambda e: e.monotonic_us):
        before_us = last_us.get(event.text)
        if len(alive) < 2 or before_us is None or event.monotonic_us - before_us > SAME_LINE_US:
            found.append(event)
            last_us[event.text] = event.monotonic_us
    latest_start_us = max((reading.first_us for reading in alive), default=0)
    gaps = min((max(r.gaps, int(r.last_us < latest_start_us)) for r in alive), default=0)
    return tuple(found), gaps, ",".join(reading.name for reading in alive)


def _events(records: Iterable[Record]) -> tuple[XidEvent, ...]:
    reader = EventReader()
    return tuple(event for record in records for event in reader.read(record))


def _span_us(records: Sequence[Record]) -> tuple[int, int]:
    return (records[0].monotonic_us, records[-1].monotonic_us) if records else (0, 0)


def read_journal(run: Callable[[Sequence[str]], bytes | None] | None = None) -> SourceReading:
    """Kernel messages of this boot from journald; not alive when there are none (containers, no journal)."""
    output = (run or _run)(
        ["journalctl", "-b", "-o", "json", "--no-pager", f"--output-fields={_JOURNAL_FIELDS}",
         "_TRANSPORT=kernel", "+", f"MESSAGE_ID={_JOURNAL_MISSED}"]
    )  # fmt: skip
    records: list[Record] = []
    missed = 0
    for line in (output or b"").splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            missed += 1
            continue
        if entry.get("MESSAGE_ID") == _JOURNAL_MISSED:
            missed += 1
        elif entry.get("_TRANSPORT") == "kernel":
            records.append(_journal_record(entry))
    if records and records[0].monotonic_us > _BOOT_START_US:
        missed += 1
    return SourceReading("journal", bool(records), _events(records), missed, *_span_us(records))


def _journal_record(entry: dict[str, Any]) -> Record:
    text = entry.get("MESSAGE")
    if isinstance(text, list):  # journald gives texts with unprintable bytes as numbers
        text = bytes(text).decode(errors="replace")
    time_us = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP") or 0
    return Record(int(entry.get("SYSLOG_FACILITY") or 0), None, int(time_us), str(text or ""))


def _run(command: Sequence[str], timeout_s: float = _JOURNAL_TIMEOUT_S) -> bytes | None:
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_kmsg_device(path: Path = KMSG_DEVICE, *, writes: bool = True) -> SourceReading:
    """Everything the kernel still holds. Where the device can be written, and `writes`, a line of our own must come
    back."""
    name = str(path)
    if not path.is_char_device():
        # A file put over /dev/kmsg is no kernel log, and a canary would damage it.
        return SourceReading(name, alive=False)
    canary = f"gpu-burnin: kernel log check {secrets.token_hex(8)}"
    fd = _open(path, os.O_RDWR) if writes else None
    if fd is None:
        canary, fd = "", _open(path, os.O_RDONLY)
    if fd is None:
        return SourceReading(name, alive=False)
    try:
        if canary:
            # Priority 14: facility user, level info. The kernel lets nobody write as facility kern.
            os.write(fd, f"<14>{canary}\n".encode())
        return read_records(name, lambda: os.read(fd, _RECORD_SIZE_BYTES), canary)
    except OSError:
        return SourceReading(name, alive=False)
    finally:
        os.close(fd)


def _open(path: Path, access: int) -> int | None:
    try:
        return os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def read_records(name: str, read_one: Callable[[], bytes], canary: str = "") -> SourceReading:
    """Read records one a call until none is left (EAGAIN, or b"" at the end of a file).

    EPIPE says that records were overwritten before they could be read; the sequence numbers then jump.
    """
    records: list[Record] = []
    broken = 0
    while True:
        try:
            data = read_one()
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            broken += 1
            continue
        if not data:
            break
        record = parse_record(data.decode(errors="replace"))
        if record:
            records.append(record)
    alive = any(canary in record.text for record in records) if canary else bool(records)
    return SourceReading(name, alive, _events(records), max(count_gaps(records, first=0), broken), *_span_us(records))
