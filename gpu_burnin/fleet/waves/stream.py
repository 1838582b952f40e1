"""The connection to a worker while a shard runs there: what is transmitted, signs of life, and what comes back."""

from __future__ import annotations

import base64
import binascii
import contextlib
import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import IO, Any

from gpu_burnin.fleet.waves import far, places
from gpu_burnin.fleet.waves.places import Place
from gpu_burnin.system.prose import printable

# A worker that shows no sign of life for so long is lost.
_SILENT_S = 120.0
# A report is the longest line; what is longer is none, and its worker lost.
_MOST_LINE_BYTES = 64 << 20
# Longer ones are files: one string, and not the many values that take a hundred times the memory of their text.
_MOST_EVENT_BYTES, _MOST_VALUES_OF_FILE = 8 << 20, 16
# Of what ssh and the worker's own process say beside their answers.
_MOST_ERROR_LINE_BYTES, _LAST_ERRORS_S = 64 << 10, 5.0


@dataclass(frozen=True)
class Expected:
    """The files that may come back: with their content, of so many bytes in all, and those that are there or not."""

    names: Collection[str]
    marks: Collection[str]
    most_bytes: int


class Unfit(Exception):
    """A worker sent what no shard sends. Says what."""


class Log:
    """What a shard printed, into a file: whole lines that a terminal can show, of so many bytes in all."""

    def __init__(self, file: IO[bytes], most_bytes: int) -> None:
        self._file, self._left, self._most = file, most_bytes, most_bytes
        self._full = False
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Add lines, or say once that no further one is kept."""
        with self._lock:
            for line in text.splitlines():
                content = f"{printable(line.expandtabs())}\n".encode(errors="replace")
                if not self._full and len(content) > self._left:
                    self._full = True
                    words = f"[WARNING]: this shard printed more than {self._most} bytes; no further line of it is kept"
                    self._file.write(f"{words}\n".encode())
                if self._full:
                    return
                self._left -= len(content)
                self._file.write(content)


def stream(
    place: Place, project: str, run: str, private: str, kwargs: Mapping[str, Any], log: Log, expected: Expected
) -> dict[str, Any]:
    """Everything that came back of a shard, by its name, with `rc` where the run came to its end.

    Raises Unfit.
    """
    from ansible_runner.streaming import Transmitter

    process = subprocess.Popen(
        places.command(place, project, "run", run),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    done = threading.Event()
    errors = threading.Thread(target=_errors, args=(process.stderr, log), daemon=True)
    errors.start()
    seen = _Lines(process.stdout)
    try:
        Transmitter(_output=process.stdin, private_data_dir=private, **kwargs).run()
        for work in (_beat, _watch):
            threading.Thread(target=work, args=(process, seen, done), daemon=True).start()
        return _process(seen, private, log, expected)
    except OSError:
        return {}
    finally:
        done.set()
        process.kill()
        process.wait()
        # What ssh itself started may still have its end.
        errors.join(_LAST_ERRORS_S)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class _Files:
    """Files of a worker by their names."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self.files: dict[str, bytes] = {}

    def take(self, name: str, content: Any) -> None:
        """Keep one that is expected. Raises Unfit for more than is kept."""
        if name in self._expected.names:
            try:
                self.files[name] = base64.b64decode(content)
            except (binascii.Error, ValueError, TypeError) as error:
                raise Unfit(f"its {name} is not in base64") from error
            if sum(map(len, self.files.values())) > self._expected.most_bytes:
                raise Unfit(f"it sent more than {self._expected.most_bytes} bytes")
        elif name in self._expected.marks:
            self.files[name] = b""


class _Lines:
    """Lines of a worker, and when the last one came."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.last_s = time.monotonic()

    def readline(self) -> bytes:
        """The next one, b"" at the end. Raises Unfit for what is no mapping: ansible-runner takes it for one."""
        line = self._source.readline(_MOST_LINE_BYTES)
        self.last_s = time.monotonic()
        if line and not line.startswith(b"{"):
            raise Unfit("a line of it is no JSON object")
        if len(line) > _MOST_EVENT_BYTES and any(
            line.count(mark) > _MOST_VALUES_OF_FILE for mark in (b"[", b"{", b",")
        ):
            raise Unfit(f"a line of it has more than {_MOST_EVENT_BYTES} bytes and is no file")
        return line


def _beat(process: subprocess.Popen[bytes], seen: _Lines, done: threading.Event) -> None:
    """Tell the worker that this controller lives."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        while not done.wait(far.BEAT_S):
            process.stdin.write(b"\n")
            process.stdin.flush()


def _watch(process: subprocess.Popen[bytes], seen: _Lines, done: threading.Event) -> None:
    """Give a worker up that says nothing any more."""
    while not done.wait(far.BEAT_S):
        if time.monotonic() - seen.last_s > _SILENT_S:
            process.kill()
            return


def _errors(source: IO[bytes], log: Log) -> None:
    """Keep what ssh says, and the worker's own process."""
    with contextlib.suppress(OSError, ValueError), source:
        while line := source.readline(_MOST_ERROR_LINE_BYTES):
            log.write(line.decode(errors="replace"))


def _process(lines: _Lines, private: str, log: Log, expected: Expected) -> dict[str, Any]:
    from ansible_runner.streaming import Processor

    files: dict[str, Any] = {}
    kept = _Files(expected)

    class Incoming(Processor):  # type: ignore[misc]
        """Takes files as lines, and no archive: what a worker packs could be unpacked anywhere."""

        def status_callback(self, status_data: Mapping[str, Any]) -> None:
            self.status = str(status_data["status"])

        def event_callback(self, event_data: Mapping[str, Any]) -> None:
            if "rc" in event_data:
                files["rc"] = _code(event_data["rc"])
            elif "file" in event_data:
                kept.take(str(event_data["file"]), event_data.get("content"))
            elif text := event_data.get("stdout"):
                log.write(str(text))

        def artifacts_callback(self, artifacts_data: Mapping[str, Any]) -> None:
            raise Unfit("it sent an archive")

    try:
        Incoming(_input=lines, private_data_dir=private, quiet=True).run()
    except (RecursionError, ValueError) as error:
        raise Unfit(f"a line of it cannot be read: {error}") from error
    return {**kept.files, **files}


def _code(found: object) -> int | None:
    """Raises Unfit for what is no exit code."""
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise Unfit("its exit code is no number")
