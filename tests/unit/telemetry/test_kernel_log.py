"""Reading the kernel log: records, XID and SXid lines, gaps, sources that are alive or not."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_burnin.telemetry import kernel_log
from gpu_burnin.telemetry.kernel_log import (
    FileLog,
    KernelLogError,
    SourceReading,
    SystemLog,
    merge,
    open_kernel_log,
    read_journal,
    read_kmsg_device,
    read_records,
)
from gpu_burnin.telemetry.kmsg import UNREADABLE, EventReader, XidEvent, count_gaps, parse_record, xid_event

XID79 = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def event(line: str) -> XidEvent | None:
    record = parse_record(line)
    return xid_event(record) if record else None


def test_xid_line() -> None:
    assert event(f"3,7,123456,-;{XID79}") == XidEvent(79, "0000:91:00.0", None, XID79, 123456, False)


@pytest.mark.parametrize(
    ("text", "xid", "bus", "pid"),
    [
        ("NVRM: Xid (PCI:0000:cb:00): 31, pid=1234, name=python, Ch 00000008", 31, "0000:cb:00.0", 1234),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid='77', name=python", 13, "0000:cb:00.0", 77),
        ("NVRM: Xid (PCI:0009:01:00 GPU-I:05): 94, pid=5, Contained", 94, "0009:01:00.0", 5),
        ("NVRM: Xid (0000:03:00): 8, Channel 00000001", 8, "0000:03:00.0", None),
    ],
)
def test_xid_spellings(text: str, xid: int, bus: str, pid: int | None) -> None:
    found = event(f"4,1,5,-;{text}")
    assert found and (found.xid, found.pci_bus_id, found.pid, found.sxid) == (xid, bus, pid, False)


def test_sxid_line() -> None:
    text = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    found = event(f"3,1,5,-;{text}")
    assert found and (found.xid, found.pci_bus_id, found.sxid) == (20034, "0000:06:00.0", True)


@pytest.mark.parametrize(
    ("text", "sxid"),
    [
        ("NVRM: Xid (PCI:0000:91:00): GPU has fallen off the bus", False),
        ("NVRM: Xid (PCI:0000:91:00", False),
        ("NVRM: Xid 79", False),
        ("NVRM: xid (PCI:????): 79", False),
        (f"NVRM: Xid (PCI:0000:91:00): {'9' * 5000}", False),
        ("nvidia-nvswitch0: SXid (): 20034, Fatal", True),
    ],
)
def test_a_line_of_the_kernel_that_says_xid_and_not_which_is_an_event(text: str, sxid: bool) -> None:
    assert event(f"3,1,5,-;{text}") == XidEvent(UNREADABLE, "", None, text, 5, sxid)
    assert event(f"14,1,5,-;{text}") is None


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", bytes(range(256)) * 8, b"Linux version 6.1\n", b"9" * 5000 + b",1,1,-;x"]
)
def test_a_file_without_a_record_is_no_living_source(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(content)
    assert FileLog(tmp_path / "kmsg").read() == ((), 0, "")


def test_a_torn_line_that_speaks_of_an_xid_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"6,0,1,-;Linux version\n3,1,\x00\x07-;{XID79}\n SUBSYSTEM=pci\nsomething else\n")
    assert FileLog(path).read() == ((), 1, str(path))


@pytest.mark.parametrize(
    "line",
    [
        f"14,7,123456,-;{XID79}",  # facility user: anybody may write this
        "3,7,123456,-;usb 1-1: new device",
        f"3,7,123456,-;someone says {XID79}",
        "3,7,123456,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        " SUBSYSTEM=pci",
        XID79,
        "",
        "x,y,z,-;text",
    ],
)
def test_other_lines_are_no_xid(line: str) -> None:
    assert event(line) is None


def test_gaps_by_sequence_number() -> None:
    def gaps(*numbers: int, first: int | None = None) -> int:
        records = [parse_record(f"6,{number},0,-;text") for number in numbers]
        return count_gaps((record for record in records if record), first)

    assert gaps(1, 2, 3) == 0
    assert gaps(1, 4, 5) == 2
    assert gaps(1, 2, 1) == 1
    assert gaps(5, 6, first=0) == 5
    assert gaps(0, 1, first=0) == 0


def test_file_of_the_lab(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(f"6,1,10,-;Linux version 6.1\n<30>systemd[1]: hello\n14,2,20,-;user\n3,3,30,-;{XID79}\n")
    log = open_kernel_log(str(path))
    assert log.simulated
    events, gaps, source = log.read()
    assert ([e.xid for e in events], gaps, source) == ([79], 0, str(path))
    with path.open("a") as file:
        file.write("6,9,40,-;later\n")
    assert log.read()[1] == 5


def test_lab_line_is_understood() -> None:
    path = Path(__file__).resolve().parents[2] / "lab/scenarios/sick-ecc-xid79.kmsg"
    assert [e.xid for e in FileLog(path).read()[0]] == [79]


def test_missing_file_is_a_dead_source(tmp_path: Path) -> None:
    assert FileLog(tmp_path / "none").read() == ((), 0, "")


def test_specification() -> None:
    assert isinstance(open_kernel_log("auto"), SystemLog)
    assert isinstance(open_kernel_log("/dev/null"), SystemLog)
    with pytest.raises(KernelLogError, match="absolute path"):
        open_kernel_log("kmsg")


def device(*answers: bytes | int) -> Callable[[], bytes]:
    """A stand-in for read(2) on /dev/kmsg: records, and errno numbers that are raised."""
    left = list(answers)

    def read_one() -> bytes:
        answer = left.pop(0) if left else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, "simulated")
        return answer

    return read_one


def test_device_records() -> None:
    reading = read_records("kmsg", device(b"6,0,0,-;Linux\n", f"3,1,9,-;{XID79}\n DEVICE=x\n".encode()))
    assert (reading.alive, [e.xid for e in reading.events], reading.gaps) == (True, [79], 0)


def test_device_that_was_overrun_has_a_gap() -> None:
    assert read_records("kmsg", device(b"6,0,0,-;a\n", errno.EPIPE, b"6,5,0,-;b\n")).gaps == 4
    assert read_records("kmsg", device(b"6,0,0,-;a\n", errno.EPIPE)).gaps == 1
    assert read_records("kmsg", device(b"6,100,0,-;the ring has wrapped\n")).gaps == 100


def test_device_needs_its_canary_back() -> None:
    line = b"14,0,0,-;gpu-burnin: kernel log check abc\n"
    assert read_records("kmsg", device(line), "kernel log check abc").alive
    assert not read_records("kmsg", device(line), "kernel log check other").alive
    assert not read_records("kmsg", device()).alive


def test_other_device_errors_are_not_swallowed() -> None:
    with pytest.raises(OSError, match="simulated"):
        read_records("kmsg", device(errno.EIO))


def test_file_over_the_device_is_neither_trusted_nor_damaged(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,0,0,-;text\n")
    assert not read_kmsg_device(path).alive
    assert path.read_text() == "6,0,0,-;text\n"
    assert not read_kmsg_device(tmp_path / "none").alive


def journal(*entries: dict[str, object]) -> Callable[[Sequence[str]], bytes]:
    return lambda _: b"\n".join(json.dumps(entry).encode() for entry in entries)


def entry(text: object, time_us: int, facility: str = "0") -> dict[str, object]:
    return {
        "MESSAGE": text,
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": facility,
        "_SOURCE_MONOTONIC_TIMESTAMP": str(time_us),
    }


def test_journal() -> None:
    reading = read_journal(journal(entry("Linux version", 0), entry(XID79, 5_000_000), entry(XID79, 6_000_000, "1")))
    assert (reading.alive, reading.gaps) == (True, 0)
    assert [(e.xid, e.monotonic_us) for e in reading.events] == [(79, 5_000_000)]


def test_journal_with_bytes_for_text() -> None:
    assert [e.xid for e in read_journal(journal(entry("Linux", 0), entry(list(XID79.encode()), 1))).events] == [79]


@pytest.mark.parametrize(
    "entries",
    [
        [entry("late", 60_000_000)],
        [entry("Linux", 0), {"MESSAGE_ID": "e9bf28e6e834481bb6f48f548ad13606", "MESSAGE": "Missed 3 kernel messages"}],
    ],
)
def test_journal_that_lost_messages_has_a_gap(entries: list[dict[str, object]]) -> None:
    assert read_journal(journal(*entries)).gaps == 1


def test_journal_without_kernel_messages_is_dead() -> None:
    assert not read_journal(journal()).alive
    assert not read_journal(lambda _: None).alive


def test_sources_are_merged() -> None:
    first = XidEvent(79, "0000:91:00.0", None, XID79, 5_000_000, False)
    stamped_later = XidEvent(79, "0000:91:00.0", None, XID79, 5_000_400, False)
    second = XidEvent(79, "0000:91:00.0", None, XID79, 9_000_000, False)
    readings = (
        SourceReading("journal", True, (first, second), 0),
        SourceReading("/dev/kmsg", True, (stamped_later,), 100),
    )
    events, gaps, sources = merge(readings)
    assert (events, gaps, sources) == ((first, second), 0, "journal,/dev/kmsg")
    assert merge((SourceReading("journal", False), readings[1])) == ((stamped_later,), 100, "/dev/kmsg")
    assert merge((SourceReading("journal", False),)) == ((), 0, "")


@pytest.mark.parametrize(("journal_ends_us", "gaps"), [(4_000_000, 1), (5_000_000, 0), (9_000_000, 0)])
def test_a_journal_that_stopped_before_the_device_begins_has_a_gap(journal_ends_us: int, gaps: int) -> None:
    stopped = SourceReading("journal", True, first_us=0, last_us=journal_ends_us)
    wrapped = SourceReading("/dev/kmsg", True, gaps=70, first_us=5_000_000, last_us=9_000_000)
    assert merge((stopped, wrapped))[1] == gaps
    assert merge((stopped, SourceReading("/dev/kmsg", True, last_us=9_000_000)))[1] == 0, "the device has all"


def test_a_file_that_was_cut_or_replaced_has_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,100,-;first\n6,2,200,-;second\n")
    log = FileLog(path)
    assert log.read()[1] == 0
    with path.open("a") as file:
        file.write("6,3,300,-;third\n")
    assert log.read()[1] == 0
    path.write_text("")
    assert log.read()[1] == 1
    assert log.read()[1] == 1, "what is lost does not come back"
    (tmp_path / "new").write_text("6,9,900,-;much later, in a file that is longer than the one before\n")
    (tmp_path / "new").replace(path)
    assert log.read()[1] == 2


def test_the_device_is_opened_for_reading_alone_where_nothing_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(kernel_log, "_open", lambda path, access: asked.append(access))
    device = Path("/dev/null")
    read_kmsg_device(device, writes=False)
    assert asked == [os.O_RDONLY]
    read_kmsg_device(device)
    assert asked[1:] == [os.O_RDWR, os.O_RDONLY]


# --- what the driver says without the number of an XID ---

FIELD = Path(__file__).parents[2] / "support/field_cases"
BUS = "0000:43:00.0"
FALLEN_PARTS = (
    f"The NVIDIA GPU {BUS}",
    "(PCI ID: 10de:2330) installed in this system has",
    "fallen off the bus and is",
)


def read_all(*texts: str, step_us: int = 10) -> list[tuple[int, str, bool]]:
    """Code, address and whether it is a GPU that was not started, of the events of these lines."""
    reader, found = EventReader(), []
    for number, text in enumerate(texts):
        record = parse_record(f"3,{number},{1_000_000 + number * step_us},-;{text}")
        assert record is not None
        found += [(event.xid, event.pci_bus_id, event.unstarted) for event in reader.read(record)]
    return found


@pytest.mark.parametrize("name", ["log-nvsentinel155-fallen-no-xid.kmsg", "log-okm789-rminitadapter.kmsg"])
def test_logs_of_the_field_without_an_xid(name: str) -> None:
    """After NVSentinel issue 155, and open-gpu-kernel-modules issue 789: each is one event of its GPU."""
    (event,), gaps, _ = FileLog(FIELD / name).read()
    assert (event.pci_bus_id, event.unstarted, gaps) == (BUS, "rminit" in name, 0)
    assert event.xid == (UNREADABLE if event.unstarted else 79)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["NVRM: " + "\\x0aNVRM: ".join(FALLEN_PARTS)], [(79, BUS, False)]),
        ([f"NVRM: {part}" for part in FALLEN_PARTS], [(79, BUS, False)]),
        ([f"NVRM: GPU {BUS}: GPU has fallen off the bus."], [(79, BUS, False)]),
        (["NVRM: GPU at PCI:0000:43:00: GPU-0000", "NVRM: fallen off the bus"], [(79, BUS, False)]),
        (["NVRM: GPU has fallen off the bus."], [(79, "", False)]),
        # The driver's own XID says it already.
        (["NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus.", f"NVRM: GPU {BUS}: GPU has fallen off "
          "the bus."], [(79, BUS, False)]),
        (["NVRM: RmInitAdapter failed! (0x26:0xffff:1290)", "NVRM: rm_init_adapter failed for device bearing minor "
          "number 0"], [(0, "", True)]),
        ([f"NVRM: GPU {BUS}: RmInitAdapter failed! (0x62:0x65:1792)"], [(0, BUS, True)]),
        (["NVRM: The NVIDIA probe routine failed for 1 device(s)."], [(0, "", True)]),
        (["NVRM: The NVIDIA probe routine was not called for 1 device(s)."], []),
        (["someone: GPU has fallen off the bus"], []),
        (["NVRM: GPU at PCI:0000:43:00: GPU-0000", "NVRM: GPU Board Serial Number: 1650000000000"], []),
    ],
)  # fmt: skip
def test_the_driver_s_words_without_an_xid(texts: list[str], found: list[tuple[int, str, bool]]) -> None:
    assert read_all(*texts) == found


def test_a_gpu_that_was_named_long_before_is_not_blamed() -> None:
    lines = ("NVRM: GPU at PCI:0000:43:00: GPU-0000", "NVRM: fallen off the bus")
    assert read_all(*lines, step_us=2_000_000) == [(79, "", False)]


def test_several_lines_in_one_record_of_the_journal() -> None:
    text = f"NVRM: The NVIDIA GPU {BUS}\nNVRM: installed in this system has\nNVRM: fallen off the bus"
    (event,) = read_journal(journal(entry("Linux", 0), entry(text, 5))).events
    assert (event.xid, event.pci_bus_id) == (79, BUS)


def test_words_of_user_space_are_nothing() -> None:
    record = parse_record(f"14,1,5,-;NVRM: GPU {BUS}: GPU has fallen off the bus.")
    assert record is not None and EventReader().read(record) == ()


def test_a_storm_costs_each_line_the_same() -> None:
    """After NVSentinel issue 1120: 29 texts, hundreds of thousands of lines. Counted in comparisons of texts."""

    class Text(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Text.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def cost(lines: int) -> int:
        texts = [Text(f"NVRM: Xid (PCI:0000:43:00): 95, Uncontained: FBHUB {number}") for number in range(29)]
        events = tuple(XidEvent(95, BUS, None, texts[i % 29], i, False) for i in range(lines))
        twins = tuple(XidEvent(95, BUS, None, Text(event.text), event.monotonic_us + 1, False) for event in events)
        Text.compared = 0
        merge((SourceReading("journal", True, events), SourceReading("/dev/kmsg", True, twins)))
        return Text.compared

    assert cost(2000) <= 3 * cost(1000)
