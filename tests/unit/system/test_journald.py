"""Entries of the journal: each field as the native protocol has it, and what happens where nobody takes them."""

from __future__ import annotations

import io
import json
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.api.record import Transition
from gpu_burnin.node import journal_entries
from gpu_burnin.system import journald
from gpu_burnin.system.journald import FIELDS, Entry, Priority, datagram, send
from tests.support.sample_reports import faulty_8, healthy_1

ROOT = Path(__file__).resolve().parents[3]
OWN = {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER"}
STEP = Transition("2026-01-01T00:00:00Z", "ready", "quarantined", "XID_FATAL", "XID 79 on GPU 3", "muster")


def read(data: bytes) -> dict[str, list[str]]:
    """The fields of a datagram, read as the protocol's page says."""
    found: dict[str, list[str]] = defaultdict(list)
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", data)
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        found[name.decode()].append(value.decode())
    return dict(found)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """A socket that takes what is sent, as the journal does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(str(tmp_path / "socket"))
        taken.settimeout(10)
        yield tmp_path / "socket", taken


def test_an_entry_has_its_fields_and_no_empty_ones(journal: tuple[Path, socket.socket]) -> None:
    path, taken = journal
    entry = Entry("a=b\nsecond line", "gpu-burnin", Priority.ERROR, node="gpu-1", code="SLOW HUNG")
    assert send(entry, path)
    assert read(taken.recv(1 << 16)) == {
        "MESSAGE": ["a=b\nsecond line"],
        "PRIORITY": ["3"],
        "SYSLOG_IDENTIFIER": ["gpu-burnin"],
        "MUSTER_NODE": ["gpu-1"],
        "MUSTER_CODE": ["SLOW", "HUNG"],
    }


def test_nobody_waits_for_a_journal_that_is_not_there_or_full(journal: tuple[Path, socket.socket]) -> None:
    path, _ = journal
    entry = Entry("x" * 1000, "gpu-burnin")
    assert not send(entry, path.with_name("none"))
    assert not send(Entry("x" * (64 << 20), "gpu-burnin"), path), "too long for one datagram"
    sent = 0
    while send(entry, path):
        sent += 1
        assert sent < 100_000


def test_standard_output_is_the_journal_where_systemd_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        found = (tmp_path / "out").stat()
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        assert not journald.is_output(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert journald.is_output(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
        assert not journald.is_output(file.fileno())


def test_the_admitter_gives_node_code_and_states_and_writes_what_the_journal_does_not_take() -> None:
    out, given = io.StringIO(), list[Entry]()

    def take(entry: Entry) -> bool:
        given.append(entry)
        return len(given) < 3

    journal = Journal(out, native=take)
    journal.transition("gpu-1", STEP)
    journal.say("is not evicted yet", pod="team/a-1", brake="gate")
    journal.say("leads no more")
    step, message, _ = (read(datagram(entry)) for entry in given)
    assert {name: step[name] for name in step if name not in OWN} == {
        "MUSTER_KIND": ["transition"],
        "MUSTER_NODE": ["gpu-1"],
        "MUSTER_CODE": ["XID_FATAL"],
        "MUSTER_FROM": ["ready"],
        "MUSTER_TO": ["quarantined"],
        "MUSTER_WHO": ["muster"],
    }
    assert step["PRIORITY"] == ["4"] and message["PRIORITY"] == ["6"] and message["MUSTER_POD"] == ["team/a-1"]
    assert json.loads(step["MESSAGE"][0])["message"] == STEP.message and message["MUSTER_KIND"] == ["message"]
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["leads no more"]


def test_a_burn_in_gives_run_verdict_and_each_code(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Entry]()

    def take(entry: Entry) -> bool:
        given.append(entry)
        return True

    passed, failed = healthy_1()[0], faulty_8()[0]
    journal_entries.began("gpu-1", "RUN", "quick", take)
    journal_entries.ended(passed, take)
    journal_entries.ended(failed, take)
    first, second, third = (read(datagram(entry)) for entry in given)
    assert (first["MUSTER_KIND"], first["MUSTER_RUN"], first["MUSTER_LEVEL"]) == (["run_began"], ["RUN"], ["quick"])
    assert second["MUSTER_VERDICT"] == ["PASS"] and "MUSTER_CODE" not in second and second["PRIORITY"] == ["6"]
    assert third["MUSTER_CODE"] == [*dict.fromkeys(reason.code for reason in failed.reasons)]
    assert third["PRIORITY"] == ["3"] and third["MUSTER_NODE"] == [failed.node]
    # A person's own run in a terminal is no entry; a unit's is.
    sent = list[Entry]()
    monkeypatch.setattr(journald, "send", lambda entry: bool(sent.append(entry)))
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    journal_entries.ended(passed)
    assert not sent
    monkeypatch.setenv("INVOCATION_ID", "0" * 32)
    journal_entries.ended(passed)
    assert len(sent) == 1


def test_the_page_names_every_field_and_no_other() -> None:
    page = (ROOT / "docs/reference/journal.md").read_text()
    assert set(re.findall(r"\bMUSTER_[A-Z]+", page)) == set(FIELDS)
    assert all(f"| `{name}` | {meaning} |" in page for name, meaning in FIELDS.items())
