"""What plays did to hosts: the callback `muster.fleet.history` writes it on the controller, and `muster why` reads it.

SQLite in WAL mode: readers and a writer never wait for each other. One transaction for each play. Results lie in the
order in which they are written, so that 7,500 hosts are one run of pages; one host is found by a look-up for each play.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

from gpu_burnin.errors import GpuBurninError

FILE = "history.sqlite3"
KEPT_S = 365 * 86400.0
# Of the schema below. A file of another version is neither read nor written.
_VERSION = 1
_BUSY_S = 20.0
# So many plays that are too old go with each that comes: the file stays bounded, and no write takes long.
_PRUNED_AT_ONCE = 4
_MOST_MESSAGE = 300
_SCHEMA = f"""
CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE plays (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, playbook TEXT NOT NULL, name TEXT NOT NULL, who TEXT NOT NULL,
  only_hosts TEXT NOT NULL, check_mode INTEGER NOT NULL, started_at TEXT NOT NULL, ended_at TEXT NOT NULL
);
CREATE INDEX plays_by_time ON plays (started_at);
CREATE TABLE results (
  play INTEGER NOT NULL, host INTEGER NOT NULL, ok INTEGER NOT NULL, changed INTEGER NOT NULL, failed INTEGER NOT NULL,
  unreachable INTEGER NOT NULL, skipped INTEGER NOT NULL, task TEXT NOT NULL, message TEXT NOT NULL,
  PRIMARY KEY (play, host)
) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""


class HistoryError(GpuBurninError):
    """The history cannot be read or written."""


@dataclass(frozen=True)
class Play:
    """One play. Times are RFC 3339 UTC; `only_hosts` is the run's --limit; `who` the user on the controller."""

    run: str
    playbook: str
    name: str
    who: str
    only_hosts: str
    check_mode: bool
    started_at: str
    ended_at: str


@dataclass
class Result:
    """What a play did to a host, in numbers of tasks; `task` and `message` are those of the first that failed."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    task: str = ""
    message: str = ""

    def fail(self, task: str, message: str) -> None:
        """Keep the first failure's words."""
        if not self.task:
            self.task, self.message = task[:_MOST_MESSAGE], " ".join(message.split())[:_MOST_MESSAGE]


_PLAY = ", ".join(field.name for field in fields(Play))
_RESULT = ", ".join(field.name for field in fields(Result))
# astuple() copies deeply, which for 7,500 hosts takes longer than all else.
_values = attrgetter(*(field.name for field in fields(Result)))


def record(path: Path, play: Play, results: dict[str, Result], oldest: str) -> str:
    """Write a play's results, and take out some plays that began before `oldest` (RFC 3339).

    A file that is no history any more is set aside under a new name, which is told in a sentence ("" otherwise).
    Raises HistoryError.
    """
    try:
        try:
            _write(path, play, results, oldest)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or not path.exists():
                raise
            aside = _set_aside(path)
            _write(path, play, results, oldest)
            return (
                f"{path}: the history of plays was damaged ({error}); it is kept as {aside.name}, and a new one began"
            )
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(
            f"{path}: this play is not in the history ({error}); make room, or give the folder to the user of the run"
        ) from error
    return ""


def of_host(path: Path, host: str, since: str, until: str) -> list[tuple[Play, Result]]:
    """What plays did to a host between two times (RFC 3339), the oldest first. Raises HistoryError."""
    columns = f"{', '.join(f'plays.{field.name}' for field in fields(Play))}, {_RESULT}"
    # The cross join keeps SQLite at a look-up for each play of the time.
    query = (
        f"SELECT {columns} FROM plays CROSS JOIN results ON results.play = plays.id "
        "AND results.host = (SELECT id FROM hosts WHERE hosts.name = ?) "
        "WHERE plays.started_at >= ? AND plays.started_at <= ? ORDER BY plays.started_at, plays.id"
    )
    count = len(fields(Play))
    with _reading(path) as connection:
        rows = connection.execute(query, (host, since, until)).fetchall()
    return [(_play(row[:count]), Result(*row[count:])) for row in rows]


def began(path: Path) -> str:
    """When the oldest play of it began, "" when there is none. Raises HistoryError."""
    with _reading(path) as connection:
        return str(connection.execute("SELECT min(started_at) FROM plays").fetchone()[0] or "")


def _play(row: Sequence[object]) -> Play:
    run, playbook, name, who, only_hosts, check_mode, started_at, ended_at = row
    return Play(
        str(run), str(playbook), str(name), str(who), str(only_hosts), bool(check_mode), str(started_at), str(ended_at)
    )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        where = f"file:{quote(str(path.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True, timeout=_BUSY_S)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION:
                raise HistoryError(f"{path}: is of version {version}, not {_VERSION}; use the Muster that wrote it")
            yield connection
    except sqlite3.Error as error:
        raise HistoryError(
            f"{path}: the history of plays cannot be read ({error}); the next run sets it right"
        ) from error


def _write(path: Path, play: Play, results: dict[str, Result], oldest: str) -> None:
    # Messages of tasks are nobody else's.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _put(connection, play, results)
            _prune(connection, oldest)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _put(connection: sqlite3.Connection, play: Play, results: dict[str, Result]) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
    elif version != _VERSION:
        raise sqlite3.OperationalError(f"it is of version {version}, not {_VERSION}: move it away")
    connection.executemany("INSERT OR IGNORE INTO hosts (name) VALUES (?)", ((host,) for host in results))
    ids = dict(connection.execute("SELECT name, id FROM hosts"))
    marks = ", ".join("?" * len(fields(Play)))
    number = connection.execute(f"INSERT INTO plays ({_PLAY}) VALUES ({marks})", astuple(play)).lastrowid
    marks = ", ".join("?" * (2 + len(fields(Result))))
    connection.executemany(
        f"INSERT INTO results (play, host, {_RESULT}) VALUES ({marks})",
        sorted((number, ids[host], *_values(result)) for host, result in results.items()),
    )


def _prune(connection: sqlite3.Connection, oldest: str) -> None:
    query = "SELECT id FROM plays WHERE started_at < ? ORDER BY started_at LIMIT ?"
    old = connection.execute(query, (oldest, _PRUNED_AT_ONCE)).fetchall()
    connection.executemany("DELETE FROM results WHERE play = ?", old)
    connection.executemany("DELETE FROM plays WHERE id = ?", old)


def _set_aside(path: Path) -> Path:
    """Give the file, and what SQLite keeps beside it, a name that is free."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside
