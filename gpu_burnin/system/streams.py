"""Standard output and error of the command line, which may be closed, full, or read by nobody any more."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class OutputLost(OSError):
    """Standard output cannot be written: the device is full, or its reader went away (EPIPE)."""


class _Output(io.FileIO):
    """Standard output, whose errors differ from those of other files."""

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:  # a pipe that somebody made non-blocking is full
                select.select([], [self], [])
            return written
        except OSError as error:
            raise OutputLost(error.errno, error.strerror) from error


class _Talk(io.FileIO):
    """Standard error: when it cannot be written, nothing is shown, and nothing else changes."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def open_streams() -> None:
    """Standard streams that hold what happens to them: see the classes above.

    Where the caller closed one of them, a file of the run would get its number and the messages of libraries.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 until the end
    sys.stdout = _wrapped(sys.stdout, _Output)
    sys.stderr = _wrapped(sys.stderr, _Talk)


def _wrapped(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # somebody else's, such as a test's
    raw = kind(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=stream.line_buffering
    )


def drop_output() -> None:
    """What is still to be written to standard output goes nowhere, so that the interpreter ends without stumbling."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


@contextlib.contextmanager
def readers_may_leave(what: str, program: str = "gpu-burnin") -> Iterator[None]:
    """For a command whose exit code is its answer: output (`what`) that gets lost is reported, and is no error."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        with contextlib.suppress(OSError):  # nobody is left to tell
            print(f"{program}: {what} could not be printed ({error.strerror or error})", file=sys.stderr)
