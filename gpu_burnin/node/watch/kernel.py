"""Following the kernel log: /dev/kmsg, or the file that stands in for it; what is there already comes first."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.telemetry.kernel_log import AUTO, KMSG_DEVICE, SPEAKS_OF_XID
from gpu_burnin.telemetry.kmsg import EventReader, XidEvent, count_gaps, parse_record

_RECORD_SIZE_BYTES = 8192
_FILE_POLL_S = 1.0
# A log that is written faster than it is read has no end: so many records, and they are told.
_MOST_AT_ONCE = 1000
# How long until a log that cannot be read is tried again.
RETRY_S = 30.0


@dataclass(frozen=True)
class Read:
    """What came: events, messages known to be lost, and why nothing can be read ("" when it can).

    `again`: it was there before, so that it may have come already.
    """

    events: tuple[XidEvent, ...] = ()
    lost: int = 0
    why: str = ""
    again: bool = False


def follow(spec: str, sleep: Callable[[float], object]) -> Iterator[Read]:
    """The kernel log named as in the configuration, for ever. `sleep` waits, and ends the iteration by raising."""
    path = Path(spec)
    if spec == AUTO or path.is_char_device():
        yield from follow_device(KMSG_DEVICE if spec == AUTO else path, sleep)
    else:
        yield from follow_file(path, sleep)


def follow_device(path: Path, sleep: Callable[[float], object]) -> Iterator[Read]:
    """All that the kernel still holds, then each message as it comes."""
    while True:
        trouble = "cannot be read"
        try:
            # A file put over /dev/kmsg is no kernel log.
            if not path.is_char_device():
                yield Read(why=f"{path} is no kernel log")
            else:
                with _opened(path) as fd, _opened(path) as since:
                    os.lseek(since, 0, os.SEEK_END)
                    trouble = "cannot be read any more"
                    yield from _records(fd, since, sleep)
        except OSError as error:
            yield Read(why=f"{path} {trouble} ({error.strerror})")
        sleep(RETRY_S)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _wait(fd: int, sleep: Callable[[float], object]) -> None:
    select.select([fd], [], [], _FILE_POLL_S)
    sleep(0.0)


def _next_number(fd: int) -> int | None:
    """That of the next record, None while there is none."""
    try:
        record = parse_record(os.read(fd, _RECORD_SIZE_BYTES).decode(errors="replace"))
    except OSError:
        return None
    return record.sequence if record is not None else None


def _records(fd: int, since: int, sleep: Callable[[float], object]) -> Iterator[Read]:
    """Records one a call; EPIPE says that some were overwritten before they could be read.

    `since` reads what came after this began, and nothing before: what is new shows also where a storm has no pause.
    """
    expected: int | None = None
    first_new: int | None = None
    events: list[XidEvent] = []
    reader = EventReader()
    lost, again, left = 0, True, _MOST_AT_ONCE
    while True:
        if left == 0:
            yield Read(tuple(events), lost, again=again)
            events, lost, left = [], 0, _MOST_AT_ONCE
            if again:
                first_new = _next_number(since) if first_new is None else first_new
                again = first_new is None or expected is None or expected < first_new
            sleep(0.0)
        left -= 1
        try:
            record = parse_record(os.read(fd, _RECORD_SIZE_BYTES).decode(errors="replace"))
        except BlockingIOError:
            if again or events or lost:
                yield Read(tuple(events), lost, again=again)
                events, lost, again = [], 0, False
            left = _MOST_AT_ONCE
            _wait(fd, sleep)
            continue
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # The numbers tell how many.
            continue
        if record is None:
            continue
        if record.sequence is not None:
            if expected is not None and record.sequence != expected:
                lost += max(record.sequence - expected, 1)
            expected = record.sequence + 1
        events += reader.read(record)


def follow_file(path: Path, sleep: Callable[[float], object]) -> Iterator[Read]:
    """A file of kmsg lines, as the lab's hosts have; one that was cut short or replaced has a gap."""
    before: os.stat_result | None = None
    offset, rest, expected, blind = 0, b"", None, True
    reader = EventReader()
    while True:
        try:
            with path.open("rb") as file:
                now = os.fstat(file.fileno())
                cut = before is not None and (now.st_ino != before.st_ino or now.st_size < offset)
                if cut:
                    offset, rest, expected = 0, b"", None
                file.seek(offset)
                offset += len(new := file.read())
        except OSError as error:
            yield Read(why=f"{path} cannot be read ({error.strerror})")
            blind = True
            sleep(_FILE_POLL_S)
            continue
        *lines, rest = (rest + new).split(b"\n")
        texts = [line.decode(errors="replace") for line in lines]
        records = [record for text in texts if (record := parse_record(text))]
        torn = sum(parse_record(text) is None and SPEAKS_OF_XID in text.lower() for text in texts)
        lost = count_gaps(records, first=expected) + torn + int(cut)
        numbers = [record.sequence for record in records if record.sequence is not None]
        expected = numbers[-1] + 1 if numbers else expected
        events = tuple(event for record in records for event in reader.read(record))
        if blind or events or lost:
            yield Read(events, lost, again=before is None or cut)
        before, blind = now, False
        sleep(_FILE_POLL_S)
