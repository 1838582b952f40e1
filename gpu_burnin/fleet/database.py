"""A file of the controller's in SQLite, in WAL mode: readers and a writer never wait for each other."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpu_burnin.errors import GpuBurninError

_BUSY_S = 20.0


@dataclass(frozen=True)
class Database:
    """What a file is: `holds` in words ("the history of plays"), its version, and the statements that make it.

    A file of another version is neither read nor written. `error` is what its functions raise.
    """

    holds: str
    version: int
    schema: str
    error: type[GpuBurninError]

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[sqlite3.Connection]:
        """The file, to read from. Raises the database's error."""
        try:
            where = f"file:{quote(str(path.absolute()))}?mode=ro"
            with contextlib.closing(sqlite3.connect(where, uri=True, timeout=_BUSY_S)) as connection:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version != self.version:
                    raise self.error(
                        f"{path}: is of version {version}, not {self.version}; use the Muster that wrote it"
                    )
                yield connection
        except sqlite3.Error as error:
            raise self.error(f"{path}: {self.holds} cannot be read ({error}); the next run sets it right") from error

    def write(self, path: Path, put: Callable[[sqlite3.Connection], None]) -> str:
        """Have `put` write in one transaction. It may be called a second time.

        A file that is no database any more is set aside under a new name, which is told in a sentence ("" otherwise).
        Raises sqlite3.Error and OSError.
        """
        try:
            self._write(path, put)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or not path.exists():
                raise
            aside = _set_aside(path)
            self._write(path, put)
            return f"{path}: {self.holds} was damaged ({error}); it is kept as {aside.name}, and a new one began"
        return ""

    def _write(self, path: Path, put: Callable[[sqlite3.Connection], None]) -> None:
        # What it holds is nobody else's.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._made(connection)
                put(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _made(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in f"{self.schema}; PRAGMA user_version = {self.version}".split(";"):
                connection.execute(statement)
        elif version != self.version:
            raise sqlite3.OperationalError(f"it is of version {version}, not {self.version}: move it away")


def _set_aside(path: Path) -> Path:
    """Give the file, and what SQLite keeps beside it, a name that is free."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside
