"""The rates that reports measured, kept on the controller: one point a week for each host and level, for half a year.

Of a host's reports the newest alone stays; what it measured is kept here when it comes: by the callback of the plays,
and by `muster baseline`, which looks at all of them. The point of a host with 8 GPUs takes 0.7 KiB.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.baseline.points import Point, Rate, read_point
from gpu_burnin.fleet.database import Database
from gpu_burnin.node.store import is_run_id
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.report.model import ReportError

FILE = "rates.sqlite3"
KEPT_WEEKS = 26
WEEK_S = 7 * 86400
# A clock that is ahead by more would keep newer reports from counting.
_AHEAD_S = 86400
# So many reports are read and then written at once: few enough for the memory, many enough for the disk.
_AT_ONCE = 500
_SCHEMA = """
CREATE TABLE hosts (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, node TEXT NOT NULL, at INTEGER NOT NULL, why_not TEXT NOT NULL
);
CREATE TABLE files (path TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (
  id INTEGER PRIMARY KEY, level TEXT, driver TEXT, gpu_burnin TEXT, shapes TEXT, chassis TEXT, limits TEXT,
  UNIQUE (level, driver, gpu_burnin, shapes, chassis, limits)
);
CREATE TABLE cards (
  id INTEGER PRIMARY KEY, uuid TEXT, model TEXT, vbios TEXT, slot TEXT, UNIQUE (uuid, model, vbios, slot)
);
CREATE TABLE layouts (id INTEGER PRIMARY KEY, rates TEXT NOT NULL UNIQUE);
CREATE TABLE points (
  week INTEGER NOT NULL, host INTEGER NOT NULL, level TEXT NOT NULL, at INTEGER NOT NULL, run TEXT NOT NULL,
  setting INTEGER NOT NULL, layout INTEGER NOT NULL, cards BLOB NOT NULL, rates BLOB NOT NULL,
  PRIMARY KEY (week, host, level)
) WITHOUT ROWID
"""


class RatesError(GpuBurninError):
    """The history of rates cannot be read or written."""


DATABASE = Database("the history of rates", 1, _SCHEMA, RatesError)


@dataclass
class Taken:
    """What came of reports: how many are new and count, how many are new and do not, by why; what cannot be read."""

    new: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Arrived:
    """A report file as it was found, and its point."""

    name: str
    size_bytes: int
    mtime_ns: int
    point: Point

    @property
    def host(self) -> str:
        """The folder it lies in."""
        return self.name.partition("/")[0]


def reports_of(directory: Path) -> Iterator[Path]:
    """All report files in the hosts' folders. Raises RatesError where there is no such folder."""
    try:
        with os.scandir(directory) as entries:
            hosts = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise RatesError(f"{directory}: no reports can be read ({error.strerror}); give the folder of the fleet's "
                         "state with --state, and have site.yml test its nodes") from error  # fmt: skip
    for host in hosts:
        try:
            with os.scandir(directory / host) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError:  # gone meanwhile, or forbidden: it has no report for us
            continue
        yield from (directory / host / name for name in names if name == REPORT or _is_run(name))


def take_in(path: Path, reports: Iterable[Path], now: datetime, *, all_there: bool = False) -> Taken:
    """Keep what reports measured that are new or have changed. `path` is the database.

    `all_there`: the reports are all that there are, so hosts without one are forgotten. Raises RatesError.
    """
    taken = Taken()
    known = _known(path)
    seen: set[str] = set()
    read: list[Arrived] = []
    for report in reports:
        name = f"{report.parent.name}/{report.name}"
        seen.add(name)
        try:
            found = report.stat()
        except OSError as error:
            taken.problems.append(f"{report}: cannot be read as a report ({error.strerror})")
            continue
        if known.get(name) != (found.st_size, found.st_mtime_ns):
            point = _point(report, now, taken)
            # What cannot be read is told each time.
            if point is not None:
                read.append(Arrived(name, found.st_size, found.st_mtime_ns, point))
        if len(read) == _AT_ONCE:
            keep(path, read, now, taken)
            read = []
    gone = known.keys() - seen if all_there else set()
    if read or gone or not path.exists():
        keep(path, read, now, taken, gone)
    return taken


def _is_run(name: str) -> bool:
    return name.endswith(".json") and is_run_id(name.removesuffix(".json"))


def _point(report: Path, now: datetime, taken: Taken) -> Point | None:
    try:
        point = read_point(report)
    except ReportError as error:
        taken.problems.append(str(error))
        return None
    if (point.at - now).total_seconds() > _AHEAD_S:
        taken.problems.append(f"{report}: it is of {point.at:%Y-%m-%d}, which is to come; set the host's clock")
        return None
    if point.why_not:
        taken.left_out[point.why_not] += 1
    else:
        taken.new += 1
    return point


def _known(path: Path) -> dict[str, tuple[int, int]]:
    if not path.exists():
        return {}
    try:
        with DATABASE.reading(path) as connection:
            return {name: (size, time) for name, size, time in connection.execute("SELECT * FROM files")}
    except RatesError:
        return {}  # writing it says what is wrong, or sets it right


def keep(path: Path, read: Sequence[Arrived], now: datetime, taken: Taken, gone: Iterable[str] = ()) -> None:
    """Write what was read, and take out the files `gone` and what is too old. Raises RatesError."""

    def put(connection: sqlite3.Connection) -> None:
        ids = _Ids(connection)
        for one in read:
            connection.execute("REPLACE INTO files VALUES (?, ?, ?)", (one.name, one.size_bytes, one.mtime_ns))
            _put(connection, ids, one.host, one.point)
        _forget(connection, gone, now)

    try:
        told = DATABASE.write(path, put)
    except (sqlite3.Error, OSError) as error:
        raise RatesError(
            f"{path}: the rates of reports cannot be kept ({error}); make room, or give the folder to this user"
        ) from error
    if told:
        taken.problems.append(told)


def _put(connection: sqlite3.Connection, ids: _Ids, host: str, point: Point) -> None:
    at = int(point.at.timestamp())
    connection.execute(
        "INSERT INTO hosts (name, node, at, why_not) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO UPDATE "
        "SET node = ?2, at = ?3, why_not = ?4 WHERE at <= ?3",
        (host, point.node, at, point.why_not),
    )
    if not point.rates:
        return
    layout = list(dict.fromkeys(rate for rates in point.rates.values() for rate in rates))
    values = [[rates.get(rate, np.nan) for rate in layout] for rates in point.rates.values()]
    cards = [ids.of("cards", astuple(card)) for card in point.rates]
    connection.execute(
        "INSERT INTO points VALUES (?, (SELECT id FROM hosts WHERE name = ?), ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET at = excluded.at, run = excluded.run, setting = excluded.setting, "
        "layout = excluded.layout, cards = excluded.cards, rates = excluded.rates WHERE at <= excluded.at",
        (
            at // WEEK_S,
            host,
            point.setting.level,
            at,
            point.run_id,
            ids.of("settings", astuple(point.setting)),
            ids.of("layouts", (json.dumps([astuple(rate) for rate in layout]),)),
            np.array(cards, "<u4").tobytes(),
            np.array(values, "<f4").tobytes(),
        ),
    )


def _forget(connection: sqlite3.Connection, gone: Iterable[str], now: datetime) -> None:
    oldest = int(now.timestamp()) // WEEK_S - KEPT_WEEKS
    connection.execute("DELETE FROM points WHERE week <= ?", (oldest,))
    gone = list(gone)
    connection.executemany("DELETE FROM files WHERE path = ?", ((name,) for name in gone))
    left = {name.partition("/")[0] for (name,) in connection.execute("SELECT path FROM files")} if gone else set()
    for host in sorted({name.partition("/")[0] for name in gone} - left):
        connection.execute("DELETE FROM points WHERE host = (SELECT id FROM hosts WHERE name = ?)", (host,))
        connection.execute("DELETE FROM hosts WHERE name = ?", (host,))


class _Ids:
    """Numbers of what is named again and again."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[str, tuple[str, ...]], int] = {}
        self._columns = {
            "cards": "uuid, model, vbios, slot",
            "settings": "level, driver, gpu_burnin, shapes, chassis, limits",
            "layouts": "rates",
        }

    def of(self, table: str, values: tuple[str, ...]) -> int:
        """The number of these values in a table, which has them from now on."""
        found = self._known.get((table, values))
        if found is None:
            columns = self._columns[table]
            marks = ", ".join("?" * len(values))
            self._connection.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", values)
            where = " AND ".join(f"{column} = ?" for column in columns.split(", "))
            (found,) = self._connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()
            self._known[table, values] = found
        return int(found)


def layout_of(text: str) -> tuple[Rate, ...]:
    """The rates that a layout names, in the order of its columns."""
    return tuple(Rate(*names) for names in json.loads(text))


def time_of(seconds: int) -> str:
    """A time of the database as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
