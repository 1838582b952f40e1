"""What the pod's log holds: the processes' lines with their ranks. Standard library alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import BinaryIO

_LONGEST_LINE = 65536
_CHUNK = 65536
_writing = threading.Lock()


def say(text: str) -> None:
    """A line of the launcher's own."""
    _write(b"[muster] " + text.encode("utf-8", "replace") + b"\n")


def _write(line: bytes) -> None:
    # Work goes on when nobody takes its words any more: a log that is full, or closed at the end.
    with _writing, contextlib.suppress(OSError, ValueError):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def prefixed(stream: BinaryIO, prefix: bytes) -> None:
    """Lines of a stream to standard output, each when it has come; a progress bar's line ends with each redraw."""
    rest = b""
    while True:
        chunk = stream.read1(_CHUNK) if hasattr(stream, "read1") else stream.read(_CHUNK)
        if not chunk:
            break
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            _write(prefix + line + b"\n")
        if len(rest) > _LONGEST_LINE:
            _write(prefix + rest + b"\n")
            rest = b""
    if rest:
        _write(prefix + rest + b"\n")


def note(termination_log: Path, text: str) -> None:
    """Where Kubernetes looks for why a container ended: the pod's status has it, and `muster why`."""
    # Its exit code says the same, where the file is not there: outside of a pod.
    with contextlib.suppress(OSError):
        termination_log.write_text(text, encoding="utf-8")
