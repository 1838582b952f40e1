"""The journal of a run: one JSON object a line, each fsynced, so that a host that dies tells what it was doing."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.files import fsync_directory, parse_json, read_bytes

# Events of a run of a month are some tens of MB.
_MOST_BYTES = 256 << 20


class Journal:
    """Append-only JSON lines at `path`; each line carries sequence number, time and the boot id (system.host).

    A disk that fails under it ends no run: the first error is kept in `problem`, and nothing is written any more.
    """

    problem: OSError | None = None

    def __init__(self, path: Path, boot_id: str) -> None:
        self._boot_id = boot_id
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._path = path
        self._fd = os.open(path, flags, 0o600)
        self._sequence = 0
        fsync_directory(path.parent)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event and wait until it is on the disk. Raises ValueError for NaN in the event."""
        self._sequence += 1
        line = {"n": self._sequence, "at": rfc3339(datetime.now(UTC)), "boot_id": self._boot_id, **event}
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        if self.problem is not None:
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fdatasync(self._fd)
        except OSError as error:
            self.problem = error

    def drop_if_broken(self) -> None:
        """Remove a journal that has lost its end: it would look like the journal of a host that died."""
        if self.problem is not None:
            with contextlib.suppress(OSError):  # the disk that does not write may not remove either
                self._path.unlink()

    def close(self) -> None:
        """Close the file; further writes fail."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; a torn last line (the host died while writing) is left out.

    Raises ValueError naming the file, and the line where an earlier one is not a JSON object, FileNotFoundError
    without a file.
    """
    events: list[dict[str, Any]] = []
    try:
        lines = read_bytes(path, _MOST_BYTES, follow=False).split(b"\n")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = parse_json(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            if number == len(lines) - 1:
                break
            raise ValueError(f"{path} line {number} is not a JSON object: the journal is damaged, remove it")
        events.append(event)
    return events


def died_during(path: Path, boot_id: str) -> str | None:
    """Name of the check, or names joined by ", ", under way when the host went down in the run of this
    journal.

    None when there is no journal, the run came to an end, or its boot is still running (then only the
    program was stopped, not the host). "start" when the host went down before or between checks.
    """
    try:
        events = read_journal(path)
    except FileNotFoundError:
        return None
    if not events or events[-1].get("boot_id") == boot_id or any(e.get("event") == "run_finished" for e in events):
        return None
    running: dict[tuple[Any, Any], str] = {}
    for event in events:
        key = (event.get("check"), event.get("gpu"))
        if event.get("event") in ("check_started", "selftest_started"):
            running[key] = str(event.get("check"))
        elif event.get("event") in ("check_finished", "selftest_finished"):
            running.pop(key, None)
    return ", ".join(dict.fromkeys(running.values())) or "start"
