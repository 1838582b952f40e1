"""Finding and reading the report of a run: by its file, its run's directory, or a node's state directory."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_burnin.node.report_head import read_head, read_report
from gpu_burnin.node.store import Store, is_run_id
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.report.model import Report, ReportError, parse


def find(path: Path) -> Path:
    """The report file for a file, a run's directory or a state directory; raises ReportError when there is none."""
    try:
        chosen = path / REPORT if path.is_dir() else path
        if not chosen.exists() and path.is_dir():
            latest = Store(path).latest / REPORT
            chosen = latest if latest.is_file() else newest_of_host(path) or chosen
        if not chosen.is_file() and path.is_dir():
            raise ReportError(f"{path}: no run has left a report there; {_hint(path)}")
        if not chosen.is_file():
            raise ReportError(
                f"{chosen}: there is no report; run gpu-burnin run, or give a report file, the directory of a run, "
                "or a folder that has one with reports for each host"
            )
    except OSError as error:  # a directory on the way that may not be looked into
        raise ReportError(f"{path}: cannot be read as a report ({error.strerror})") from error
    return chosen


def _hint(directory: Path) -> str:
    """What to do in a folder without a report, which may hold state directories, as that of demos does."""
    below = [entry / "latest" / REPORT for entry in directory.iterdir()]
    newest = max((report for report in below if report.is_file()), key=_finished_at, default=None)
    return f"the newest below it is that of {newest.parents[1]}: give that folder" if newest else "run gpu-burnin run"


def newest_of_host(directory: Path) -> Path | None:
    """The newest report in a host's folder on a controller: REPORT, or what `gpu-burnin host` keeps by the run's name.

    Where there are both, the one that ended last. None where there is none. Raises OSError.
    """
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    kept = max((name for name in names if name.endswith(".json") and is_run_id(name[:-5])), default=None)
    found = [directory / name for name in (REPORT, kept) if name in names]
    return max(found, key=_finished_at) if len(found) > 1 else next(iter(found), None)


def _finished_at(path: Path) -> str:
    try:
        return read_head(path).finished_at
    except ReportError:
        return ""


def read(path: Path) -> bytes:
    """The file of a report as it is. Raises ReportError."""
    return read_report(find(path))


def load(path: Path) -> Report:
    """Read a report file: see parse. Raises ReportError (exit 2) that names the file and what is wrong with it."""
    return parse(read(path), str(find(path)))
