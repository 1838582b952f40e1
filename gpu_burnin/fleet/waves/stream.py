"""The connection to a worker while a shard runs there: what is transmitted, signs of life, and what comes back."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import IO, Any

from gpu_burnin.fleet.waves import far, places
from gpu_burnin.fleet.waves.places import Place

# A worker that shows no sign of life for so long is lost.
_SILENT_S = 120.0
# A report is the longest line; what is longer is none, and its worker lost.
_MOST_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Expected:
    """The files that may come back: with their content, of so many bytes in all, and those that are there or not."""

    names: Collection[str]
    marks: Collection[str]
    most_bytes: int


def stream(
    place: Place,
    project: str,
    run: str,
    private: str,
    kwargs: Mapping[str, Any],
    output: IO[bytes],
    expected: Expected,
) -> dict[str, Any]:
    """Everything that came back of a shard, by its name, with `rc` where the run came to its end."""
    from ansible_runner.streaming import Transmitter

    process = subprocess.Popen(
        places.command(place, project, "run", run), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
    )
    assert process.stdin is not None and process.stdout is not None
    done = threading.Event()
    seen = _Lines(process.stdout)
    try:
        Transmitter(_output=process.stdin, private_data_dir=private, **kwargs).run()
        for work in (_beat, _watch):
            threading.Thread(target=work, args=(process, seen, done), daemon=True).start()
        return _process(seen, private, output, expected)
    except OSError:
        return {}
    finally:
        done.set()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class _Files:
    """Files of a worker by their names."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self.files: dict[str, bytes] = {}

    def take(self, name: str, content: str) -> None:
        """Keep one that is expected. Raises OSError for more than is kept."""
        if name in self._expected.names:
            self.files[name] = base64.b64decode(content)
            if sum(map(len, self.files.values())) > self._expected.most_bytes:
                raise OSError(f"the worker sent more than {self._expected.most_bytes} bytes")
        elif name in self._expected.marks:
            self.files[name] = b""


class _Lines:
    """Lines of a worker, and when the last one came."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.last_s = time.monotonic()

    def readline(self) -> bytes:
        """The next one, b"" at the end."""
        line = self._source.readline(_MOST_LINE_BYTES)
        self.last_s = time.monotonic()
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


def _process(lines: _Lines, private: str, output: IO[bytes], expected: Expected) -> dict[str, Any]:
    from ansible_runner.streaming import Processor

    files: dict[str, Any] = {}
    kept = _Files(expected)

    class Incoming(Processor):  # type: ignore[misc]
        """Takes files as lines, and no archive: what a worker packs could be unpacked anywhere."""

        def status_callback(self, status_data: Mapping[str, Any]) -> None:
            self.status = status_data["status"]

        def event_callback(self, event_data: Mapping[str, Any]) -> None:
            if "rc" in event_data:
                files["rc"] = event_data["rc"]
            elif "file" in event_data:
                kept.take(str(event_data["file"]), event_data["content"])
            elif text := event_data.get("stdout"):
                output.write(f"{text}\n".encode())

        def artifacts_callback(self, artifacts_data: Mapping[str, Any]) -> None:
            raise OSError("the worker sent an archive")

    Incoming(_input=lines, private_data_dir=private, quiet=True).run()
    return {**kept.files, **files}
