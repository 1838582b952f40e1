"""Reading: no file makes a reader wait, fills its memory or overflows its stack."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.admission.carried import carried
from gpu_burnin.checks.power.grant_request import REQUEST, state
from gpu_burnin.engine.journal import Journal, read_journal
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_skus
from gpu_burnin.node import reports
from gpu_burnin.node.known_gpus import KNOWN_GPUS, RecordError, read_known
from gpu_burnin.report import model
from gpu_burnin.settings.config import load_config
from gpu_burnin.system import known_hosts
from gpu_burnin.system.files import parse_json, read_bytes, read_text
from gpu_burnin.system.host import MACHINE_ID, machine_id

DEEP, DIGITS = b"[" * 100_000, b'{"schema": ' + b"9" * 5000 + b"}"


def as_config(path: Path) -> None:
    load_config(path)


def as_data(path: Path) -> None:
    load_skus(path)


def as_report(path: Path) -> None:
    reports.load(path)


def as_ledger(path: Path) -> None:
    path.rename(path.with_name("gpu-1.json"))
    carried(path.parent, "gpu-1", "key")


def as_record(path: Path) -> None:
    path.rename(path.with_name(KNOWN_GPUS))
    read_known(path.parent)


def as_request(path: Path) -> None:
    path.rename(path.with_name(REQUEST))
    state(path.parent)


def as_machine_id(path: Path) -> None:
    (path.parent / MACHINE_ID).parent.mkdir(parents=True)
    path.rename(path.parent / MACHINE_ID)
    machine_id(path.parent)


def as_known_hosts(path: Path) -> None:
    known_hosts.load(path)


READERS = (as_config, as_data, as_report, as_ledger, as_record, as_request, as_machine_id, as_known_hosts)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["fifo", "endless", "directory", "deep", "digits", "binary"])
def test_every_reader_refuses_in_one_sentence(kind: str, reader: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "file"
    make: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "deep": lambda: path.write_bytes(DEEP),
        "digits": lambda: path.write_bytes(DIGITS),
        "binary": lambda: path.write_bytes(bytes(range(256))),
    }
    make[kind]()
    with pytest.raises((GpuBurninError, RecordError)) as caught:
        reader(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["fifo", "endless", "directory"])
def test_a_journal_that_is_no_file_is_damaged(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    make: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
    }
    make[kind]()
    with pytest.raises(ValueError, match="cannot be read"):
        read_journal(path)


def test_a_disk_that_fails_ends_no_journal_keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Journal(tmp_path / "journal", "boot") as journal:
        journal.write({"event": "run_started"})
        with monkeypatch.context() as patched:
            patched.setattr("gpu_burnin.engine.journal.os.fdatasync", broken)
            journal.write({"event": "check_started"})
        journal.write({"event": "run_finished"})
        assert journal.problem is not None
        assert len(read_journal(tmp_path / "journal")) == 2, "nothing follows a gap"
        journal.drop_if_broken()
    assert list(tmp_path.iterdir()) == []


def test_sizes_links_and_null(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"x" * 10)
    link.symlink_to(path)
    assert read_bytes(path, 10) == read_bytes(link, 10) == b"x" * 10
    for call in (lambda: read_bytes(path, 9), lambda: read_bytes(link, follow=False)):
        with pytest.raises(OSError):
            call()
    assert read_bytes(Path("/dev/null")) == b""
    assert read_text(Path("/proc/self/comm")).strip(), "files of /proc have no size"


@pytest.mark.parametrize(
    "text", ["[" * 200 + "]" * 200, '{"a":' * 101 + "1" + "}" * 101, "[" * 100_000, "9" * 5000, ""]
)
def test_json_fails_in_one_way(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_of_ordinary_depth_is_read() -> None:
    assert parse_json("[" * 90 + "1" + "]" * 90)
    assert parse_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


def test_a_report_in_a_closed_directory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", closed)
    with pytest.raises(model.ReportError, match=r"cannot be read as a report \(Permission denied\)"):
        reports.load(tmp_path)
