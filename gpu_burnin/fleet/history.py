"""What plays did to hosts: the callback `muster.fleet.history` writes it on the controller, and `muster why` reads it.

One transaction for each play. Results lie in the order in which they are written, so that 7,500 hosts are one run of
pages; one host is found by a look-up for each play.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.database import Database
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.prose import printable

FILE = "history.sqlite3"
KEPT_S = 365 * 86400.0
# So many plays that are too old go with each that comes: the file stays bounded, and no write takes long.
_PRUNED_AT_ONCE = 4
_MOST_MESSAGE = 300
# Of a history of strangers: its plays (a run of burnin.yml has a few), a row and a value of it, the steps that reading
# it may take, and how far its clock may be ahead.
_MOST_PLAYS, _MOST_ROW_BYTES, _MOST_TEXT, _MOST_TASKS = 64, 64 << 10, 4096, 1 << 31
_STEPS_AT_ONCE, _MOST_STEPS = 100_000, 10_000
_MOST_AHEAD_S = 3600.0
_TABLES = frozenset({"hosts", "plays", "results"})
_INDEXES = frozenset({("index", "plays_by_time"), ("index", "sqlite_autoindex_hosts_1")})
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
    with _DATABASE.reading(path) as connection:
        rows = _rows(connection, host, since, until, "ORDER BY plays.started_at, plays.id").fetchall()
    count = len(fields(Play))
    return [(_play(row[:count]), Result(*row[count:])) for row in rows]


def _rows(connection: sqlite3.Connection, host: str, since: str, until: str, order: str = "") -> sqlite3.Cursor:
    """Columns of the play and of the result; without an order they come one by one, and none is kept."""
    plays = ", ".join(f"plays.{field.name}" for field in fields(Play))
    # The cross join keeps SQLite at a look-up for each play of the time.
    query = (
        "SELECT {columns} FROM plays CROSS JOIN results ON results.play = plays.id "
        "AND results.host = (SELECT id FROM hosts WHERE hosts.name = ?) "
        "WHERE plays.started_at >= ? AND plays.started_at <= ? {order}"
    )
    lacks = _lacking(connection)
    results = ", ".join(f"'' AS {name}" if name in lacks else name for name in _RESULT.split(", "))
    return connection.execute(query.format(columns=f"{plays}, {results}", order=order), (host, since, until))


def of_stranger(content: bytes, hosts: Iterable[str], now: datetime) -> dict[Play, dict[str, Result]]:
    """What a history says of hosts that another machine has written and sent. Raises HistoryError.

    It is read in memory, and only where it has the tables of a history and nothing else: what a file of SQLite may have
    beside them is run when they are read. Each value is of its kind, within its bounds, and fit to be shown; so many
    plays at most, with one result of a host each. The oldest comes first.
    """
    found: dict[Play, dict[str, Result]] = {}
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_ROW_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            # Whose size is that of the tables.
            connection.execute("PRAGMA automatic_index = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            # Not in the mode of a log beside it, which is nobody's here.
            connection.deserialize(content[:18] + b"\x01\x01" + content[20:])
            connection.execute("PRAGMA query_only = ON")
            steps = itertools.count()
            connection.set_progress_handler(lambda: next(steps) > _MOST_STEPS, _STEPS_AT_ONCE)
            _check_schema(connection)
            for host in hosts:
                for row in _rows(connection, host, "", "9"):
                    play, result = _checked(row, now)
                    results = found.setdefault(play, {})
                    if host in results or len(found) > _MOST_PLAYS:
                        raise ValueError(f"it has more than {_MOST_PLAYS} plays, or a play twice")
                    results[host] = result
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise HistoryError(f"the history that a worker sent is none ({error}); its plays are left out") from error
    return dict(sorted(found.items(), key=lambda one: one[0].started_at))


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raises ValueError where there is anything but the tables, of plain columns, and their indexes."""
    if connection.execute("PRAGMA user_version").fetchone()[0] != _DATABASE.version:
        raise ValueError(f"it is not of version {_DATABASE.version}")
    listed = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    tables = {name for kind, name, _ in listed if kind == "table"}
    others = {name for kind, name, sql in listed if kind != "table" and (kind, name) not in _INDEXES}
    if tables != _TABLES or others or any("CREATE VIRTUAL" in sql.upper() for _, _, sql in listed):
        raise ValueError("it has other tables than a history")
    if any(hidden for name in _TABLES for *_, hidden in connection.execute(f"PRAGMA table_xinfo({name})")):
        raise ValueError("it has columns that are computed")


def _checked(row: Sequence[object], now: datetime) -> tuple[Play, Result]:
    """A play and a result. Raises ValueError."""
    count = len(fields(Play))
    play, result = Play(*row[:count]), Result(*row[count:])  # type: ignore[arg-type]
    for one in (*fields(Play), *fields(Result)):
        value = getattr(play if one in fields(Play) else result, one.name)
        if one.type in ("int", "bool"):
            if not isinstance(value, int) or not 0 <= value <= _MOST_TASKS:
                raise ValueError(f"{one.name} is no number of tasks")
        elif not isinstance(value, str) or len(value) > _MOST_TEXT:
            raise ValueError(f"{one.name} is no text of at most {_MOST_TEXT} characters")
    for moment in filter(None, (play.started_at, play.ended_at, result.rebooted_at)):
        if parse_rfc3339(moment) > now + timedelta(seconds=_MOST_AHEAD_S):
            raise ValueError("it is of a time to come")
    shown = [printable(value) if isinstance(value, str) else value for value in row]
    return _play(shown[:count]), Result(*shown[count:])  # type: ignore[arg-type]


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
