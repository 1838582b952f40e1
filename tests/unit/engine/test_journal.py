"""The journal, and what it tells after the host died."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpu_burnin.engine.journal import Journal, died_during, read_journal

STARTED = {"event": "check_started", "check": "gemm", "gpu": "GPU-0"}
FINISHED = {"event": "check_finished", "check": "gemm", "gpu": "GPU-0"}


def _write(path: Path, *events: dict[str, str], boot: str = "boot-1") -> Path:
    with Journal(path, boot) as journal:
        journal.write({"event": "run_started"})
        for event in events:
            journal.write(event)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_lines_carry_number_time_and_boot(path: Path) -> None:
    first, second = read_journal(_write(path, STARTED))
    assert (first["n"], second["n"], second["boot_id"], second["check"]) == (1, 2, "boot-1", "gemm")
    assert second["at"].endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_line_is_on_disk_before_write_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", synced.append)
    _write(path, STARTED, FINISHED)
    assert len(synced) == 3


def test_a_host_that_died_is_told_with_the_check(path: Path) -> None:
    other = {"event": "check_started", "check": "hbm", "gpu": "GPU-1"}
    assert died_during(_write(path, STARTED, other), "boot-2") == "gemm, hbm"


def test_the_same_check_on_two_gpus_is_told_once(path: Path) -> None:
    assert died_during(_write(path, STARTED, {**STARTED, "gpu": "GPU-1"}), "boot-2") == "gemm"


def test_a_death_between_checks_is_told_too(path: Path) -> None:
    assert died_during(_write(path, STARTED, FINISHED), "boot-2") == "start"


def test_a_death_in_the_selftest_names_its_check(path: Path) -> None:
    assert died_during(_write(path, {**STARTED, "event": "selftest_started"}), "boot-2") == "gemm"


def test_no_death_where_there_was_none(path: Path, tmp_path: Path) -> None:
    assert died_during(tmp_path / "none", "boot-2") is None
    assert died_during(_write(path, STARTED), "boot-1") is None, "this boot still runs: only the program stopped"
    assert died_during(_write(path, {"event": "run_finished"}), "boot-2") is None


def test_an_empty_journal_tells_nothing(path: Path) -> None:
    path.touch()
    assert died_during(path, "boot-2") is None


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    _write(path, STARTED)
    with path.open("a") as stream:
        stream.write('{"event": "check_fin')
    assert died_during(path, "boot-2") == "gemm"
    with path.open("a") as stream:
        stream.write("\0\0\n")
    assert died_during(path, "boot-2") == "gemm"


def test_damage_in_the_middle_is_an_error(path: Path) -> None:
    _write(path, STARTED)
    path.write_text("junk\n" + path.read_text())
    with pytest.raises(ValueError, match=r"line 1 is not a JSON object"):
        read_journal(path)


def test_numbers_that_json_lacks_are_refused(path: Path) -> None:
    with Journal(path, "b") as journal, pytest.raises(ValueError, match="JSON"):
        journal.write({"event": "x", "v": float("nan")})
