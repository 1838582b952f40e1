"""The history of plays: what is written is read, it stays bounded, and a damaged file ends no run."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.fleet import history
from gpu_burnin.fleet.history import HistoryError, Play, Result

ALWAYS = ("2000-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z")
OLDEST = "2026-01-01T00:00:00.000Z"


def play(day: int = 1, **changed: object) -> Play:
    known = {
        "run": "r1", "playbook": "site.yml", "name": "GPU nodes", "who": "ann", "only_hosts": "", "check_mode": False,
        "started_at": f"2026-11-{day:02}T10:00:00.000Z", "ended_at": f"2026-11-{day:02}T10:05:00.000Z",
    }  # fmt: skip
    return Play(**{**known, **changed})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / history.FILE


def test_what_is_written_is_read_for_one_host_and_a_time(path: Path) -> None:
    failed = Result(ok=3)
    failed.fail("install the driver", "no\n  room")
    failed.fail("another", "later")
    assert history.record(path, play(1), {"gpu-1": Result(ok=5, changed=2), "gpu-2": failed}, OLDEST) == ""
    assert history.record(path, play(2, check_mode=True), {"gpu-2": Result(skipped=1)}, OLDEST) == ""
    found = history.of_host(path, "gpu-2", *ALWAYS)
    assert [(one.started_at, one.check_mode) for one, _ in found] == [
        ("2026-11-01T10:00:00.000Z", False), ("2026-11-02T10:00:00.000Z", True),
    ]  # fmt: skip
    assert found[0][1] == Result(ok=3, task="install the driver", message="no room")
    assert [one for one, _ in history.of_host(path, "gpu-1", *ALWAYS)] == [play(1)]
    assert history.of_host(path, "gpu-2", "2026-11-02T00:00:00.000Z", ALWAYS[1]) == found[1:]
    assert history.of_host(path, "gpu-3", *ALWAYS) == []
    assert history.began(path) == "2026-11-01T10:00:00.000Z"


def test_a_file_of_an_older_muster_is_read_and_goes_on(path: Path) -> None:
    """It does not know yet which task had a machine boot."""
    history.record(path, play(1), {"gpu-1": Result(ok=5)}, OLDEST)
    with sqlite3.connect(path) as connection:
        for name in ("rebooted", "rebooted_at"):
            connection.execute(f"ALTER TABLE results DROP COLUMN {name}")
    assert [one for _, one in history.of_host(path, "gpu-1", *ALWAYS)] == [Result(ok=5)]
    boots = Result(ok=1)
    boots.reboot("Reboot it", "2026-11-02T10:01:00.000Z")
    assert history.record(path, play(2), {"gpu-1": boots}, OLDEST) == ""
    assert [one for _, one in history.of_host(path, "gpu-1", *ALWAYS)] == [Result(ok=5), boots]


def test_the_file_is_its_user_s_alone_and_in_wal_mode(path: Path) -> None:
    history.record(path, play(), {"gpu-1": Result()}, OLDEST)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_is_too_old_goes_a_few_plays_at_a_time(path: Path) -> None:
    for day in range(1, 11):
        history.record(path, play(day), {"gpu-1": Result()}, OLDEST)
    history.record(path, play(20), {"gpu-1": Result()}, "2026-11-08T00:00:00.000Z")
    assert history.began(path) == "2026-11-05T10:00:00.000Z"
    history.record(path, play(21), {"gpu-1": Result()}, "2026-11-08T00:00:00.000Z")
    assert history.began(path) == "2026-11-08T10:00:00.000Z"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (5,)


@pytest.mark.parametrize("damage", [b"nonsense, " * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_kept_under_a_new_name_and_told(path: Path, damage: bytes) -> None:
    for number in (1, 2):
        path.write_bytes(damage)
        told = history.record(path, play(), {"gpu-1": Result(ok=number)}, OLDEST)
        assert f"kept as history.sqlite3.damaged-{number}, and a new one began" in told
        assert path.with_name(f"history.sqlite3.damaged-{number}").read_bytes() == damage
        assert [result.ok for _, result in history.of_host(path, "gpu-1", *ALWAYS)] == [number]


def test_a_file_of_another_version_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    for act in (
        lambda: history.record(path, play(), {"gpu-1": Result()}, OLDEST),
        lambda: history.of_host(path, "gpu-1", *ALWAYS),
    ):
        with pytest.raises(HistoryError, match="version 9, not 1"):
            act()
    assert not [*path.parent.glob("*damaged*")]


def test_a_file_that_cannot_be_written_or_read_is_one_sentence(path: Path) -> None:
    with pytest.raises(HistoryError, match="cannot be read"):
        history.of_host(path, "gpu-1", *ALWAYS)
    path.mkdir()
    with pytest.raises(HistoryError, match="is not in the history"):
        history.record(path, play(), {"gpu-1": Result()}, OLDEST)
    assert path.is_dir(), "nothing is moved that is no damaged file"


def test_a_play_that_cannot_be_written_whole_is_not_written_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.record(path, play(1), {"gpu-1": Result()}, OLDEST)

    def broken(connection: sqlite3.Connection, oldest: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(history, "_prune", broken)
    with pytest.raises(HistoryError, match="full"):
        history.record(path, play(2), {"gpu-1": Result()}, OLDEST)
    assert [one.started_at for one, _ in history.of_host(path, "gpu-1", *ALWAYS)] == ["2026-11-01T10:00:00.000Z"]


# --- of another machine ---

NOW = datetime(2026, 11, 28, tzinfo=UTC)
# Those of the numbers n, each the first play under another name.
_PLAYS = (
    "SELECT x, run, playbook, name || x, who, only_hosts, check_mode, started_at, ended_at FROM n, plays WHERE id = 1"
)


def test_a_history_of_another_machine_is_read_for_the_hosts_that_it_was_sent_for(path: Path) -> None:
    failed = Result()
    failed.fail("install", "no\x1b[31m room")
    history.record(path, play(1), {"gpu-1": Result(ok=5), "gpu-2": failed, "gpu-3": Result()}, OLDEST)
    history.record(path, play(2), {"gpu-1": Result(ok=6)}, OLDEST)
    found = history.of_stranger(path.read_bytes(), ["gpu-1", "gpu-2"], NOW)
    assert {one: list(results) for one, results in found.items()} == {play(1): ["gpu-1", "gpu-2"], play(2): ["gpu-1"]}
    assert found[play(2)] == {"gpu-1": Result(ok=6)}
    assert "\x1b" not in found[play(1)]["gpu-2"].message
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is written beside it"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("CREATE TABLE more (x)", "other tables"),
        ("DROP TABLE results; CREATE VIEW results AS SELECT 1 AS play, 1 AS host", "other tables"),
        ("CREATE TRIGGER more AFTER INSERT ON plays BEGIN DELETE FROM hosts; END", "other tables"),
        ("CREATE INDEX more ON plays (upper(name))", "other tables"),
        ("ALTER TABLE results ADD COLUMN more INT AS (ok + 1)", "columns that are computed"),
        ("PRAGMA user_version = 2", "not of version 1"),
        ("UPDATE results SET ok = 'many'", "ok is no number"),
        ("UPDATE results SET ok = -1", "ok is no number"),
        ("UPDATE plays SET name = x'00'", "name is no text"),
        ("UPDATE plays SET name = printf('%9999d', 1)", "name is no text of at most"),
        ("UPDATE plays SET started_at = '3026-11-01T10:00:00.000Z'", "of a time to come"),
        ("UPDATE plays SET started_at = '1'", "left out"),
        ("UPDATE plays SET name = zeroblob(70000)", "too big"),
        (f"WITH RECURSIVE n(x) AS (SELECT 2 UNION ALL SELECT x + 1 FROM n WHERE x < 70) INSERT INTO plays {_PLAYS}; "
         "INSERT INTO results (play, host, ok, changed, failed, unreachable, skipped, task, message) "
         "SELECT id, 1, 0, 0, 0, 0, 0, '', '' FROM plays WHERE id > 1", "more than 64 plays"),
        ("CREATE TABLE x AS SELECT * FROM results; DROP TABLE results; ALTER TABLE x RENAME TO results; "
         "INSERT INTO results SELECT * FROM results", "a play twice"),
    ],
)  # fmt: skip
def test_what_is_no_history_of_another_machine_is_left_out_with_the_reason(path: Path, change: str, says: str) -> None:
    history.record(path, play(1), {"gpu-1": Result(ok=5)}, OLDEST)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with pytest.raises(HistoryError, match=says):
        history.of_stranger(path.read_bytes(), ["gpu-1"], NOW)


def test_a_file_that_is_damaged_or_none_is_left_out(path: Path) -> None:
    history.record(path, play(1), {"gpu-1": Result(ok=5)}, OLDEST)
    content = path.read_bytes()
    for damaged in (b"", b"no database", content[:5000], content[:100] + b"\xff" * (len(content) - 100)):
        with pytest.raises(HistoryError, match="the history that a worker sent is none"):
            history.of_stranger(damaged, ["gpu-1"], NOW)


def test_a_file_that_takes_too_long_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.record(path, play(1), {"gpu-1": Result(ok=5)}, OLDEST)
    monkeypatch.setattr(history, "_STEPS_AT_ONCE", 1)
    monkeypatch.setattr(history, "_MOST_STEPS", 3)
    with pytest.raises(HistoryError, match="interrupted"):
        history.of_stranger(path.read_bytes(), ["gpu-1"], NOW)
