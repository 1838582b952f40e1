"""Finding and reading the report of a run: by its file, its run's directory, or a node's state directory."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.node.store import Store
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.report.model import Report, ReportError, parse
from gpu_burnin.system.files import read_bytes

_MOST_BYTES = 64 << 20


def find(path: Path) -> Path:
    """The report file for a file, a run's directory or a state directory; raises ReportError when there is none."""
    try:
        chosen = path / REPORT if path.is_dir() else path
        newest = Store(path).latest / REPORT
        if not chosen.exists() and newest.is_file():
            chosen = newest
        if not chosen.is_file():
            raise ReportError(
                f"{chosen}: there is no report; run gpu-burnin run, or give a report file or the directory of a run"
            )
    except OSError as error:  # a directory on the way that may not be looked into
        raise ReportError(f"{path}: cannot be read as a report ({error.strerror})") from error
    return chosen


def read(path: Path) -> bytes:
    """The file of a report as it is. Raises ReportError."""
    chosen = find(path)
    try:
        return read_bytes(chosen, _MOST_BYTES)
    except OSError as error:
        raise ReportError(f"{chosen}: cannot be read as a report ({error.strerror})") from error


def load(path: Path) -> Report:
    """Read a report file: see parse. Raises ReportError (exit 2) that names the file and what is wrong with it."""
    return parse(read(path), str(find(path)))
