"""What plays did to hosts: the callback `muster.fleet.history` writes it on the controller, and `muster why` reads it.

One transaction for each play. Results lie in the order in which they are written, so that 7,500 hosts are one run of
pages; one host is found by a look-up for each play.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.database import Database

FILE = "history.sqlite3"
KEPT_S = 365 * 86400.0
# So many plays that are too old go with each that comes: the file stays bounded, and no write takes long.
_PRUNED_AT_ONCE = 4
_MOST_MESSAGE = 300
_SCHEMA = """
CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE plays (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL, playbook TEXT NOT NULL, name TEXT NOT NULL, who TEXT NOT NULL,
  only_hosts TEXT NOT NULL, check_mode INTEGER NOT NULL, started_at TEXT NOT NULL, ended_at TEXT NOT NULL
);
CREATE INDEX plays_by_time ON plays (started_at);
CREATE TABLE results (
  play INTEGER NOT NULL, host INTEGER NOT NULL, ok INTEGER NOT NULL, changed INTEGER NOT NULL, failed INTEGER NOT NULL,
  unreachable INTEGER NOT NULL, skipped INTEGER NOT NULL, task TEXT NOT NULL, message TEXT NOT NULL,
  rebooted TEXT NOT NULL DEFAULT '', rebooted_at TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (play, host)
) WITHOUT ROWID
"""


class HistoryError(GpuBurninError):
    """The history cannot be read or written."""


_DATABASE = Database("the history of plays", 1, _SCHEMA, HistoryError)


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
    """What a play did to a host, in numbers of tasks; `task` and `message` are those of the first that failed.

    `rebooted` is the last task that had the machine boot, `rebooted_at` when it began (RFC 3339 UTC).
    """

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    task: str = ""
    message: str = ""
    rebooted: str = ""
    rebooted_at: str = ""

    def fail(self, task: str, message: str) -> None:
        """Keep the first failure's words."""
        if not self.task:
            self.task, self.message = task[:_MOST_MESSAGE], " ".join(message.split())[:_MOST_MESSAGE]

    def reboot(self, task: str, began_at: str) -> None:
        """Keep who had the machine boot, and when."""
        self.rebooted, self.rebooted_at = task[:_MOST_MESSAGE], began_at


_PLAY = ", ".join(field.name for field in fields(Play))
_RESULT = ", ".join(field.name for field in fields(Result))
# Files that an older Muster wrote lack these columns until the next play; it reads and writes a file that has them.
_YOUNGER = ("rebooted", "rebooted_at")
# astuple() copies deeply, which for 7,500 hosts takes longer than all else.
_values = attrgetter(*(field.name for field in fields(Result)))


def record(path: Path, play: Play, results: dict[str, Result], oldest: str) -> str:
    """Write a play's results, and take out some plays that began before `oldest` (RFC 3339).

    A file that is no history any more is set aside under a new name, which is told in a sentence ("" otherwise).
    Raises HistoryError.
    """

    def put(connection: sqlite3.Connection) -> None:
        _put(connection, play, results)
        _prune(connection, oldest)

    try:
        return _DATABASE.write(path, put)
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(
            f"{path}: this play is not in the history ({error}); make room, or give the folder to the user of the run"
        ) from error


def of_host(path: Path, host: str, since: str, until: str) -> list[tuple[Play, Result]]:
    """What plays did to a host between two times (RFC 3339), the oldest first. Raises HistoryError."""
    plays = ", ".join(f"plays.{field.name}" for field in fields(Play))
    # The cross join keeps SQLite at a look-up for each play of the time.
    query = (
        "SELECT {columns} FROM plays CROSS JOIN results ON results.play = plays.id "
        "AND results.host = (SELECT id FROM hosts WHERE hosts.name = ?) "
        "WHERE plays.started_at >= ? AND plays.started_at <= ? ORDER BY plays.started_at, plays.id"
    )
    count = len(fields(Play))
    with _DATABASE.reading(path) as connection:
        lacks = _lacking(connection)
        results = ", ".join(f"'' AS {name}" if name in lacks else name for name in _RESULT.split(", "))
        rows = connection.execute(query.format(columns=f"{plays}, {results}"), (host, since, until)).fetchall()
    return [(_play(row[:count]), Result(*row[count:])) for row in rows]


def began(path: Path) -> str:
    """When the oldest play of it began, "" when there is none. Raises HistoryError."""
    with _DATABASE.reading(path) as connection:
        return str(connection.execute("SELECT min(started_at) FROM plays").fetchone()[0] or "")


def _play(row: Sequence[object]) -> Play:
    run, playbook, name, who, only_hosts, check_mode, started_at, ended_at = row
    return Play(
        str(run), str(playbook), str(name), str(who), str(only_hosts), bool(check_mode), str(started_at), str(ended_at)
    )


def _lacking(connection: sqlite3.Connection) -> list[str]:
    """The younger columns that the file does not have."""
    have = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('results')")}
    return [name for name in _YOUNGER if name not in have]


def _put(connection: sqlite3.Connection, play: Play, results: dict[str, Result]) -> None:
    for name in _lacking(connection):
        connection.execute(f"ALTER TABLE results ADD COLUMN {name} TEXT NOT NULL DEFAULT ''")
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
