"""Parts of a report, read without the rest: of thousands of reports, most say PASS and no more is asked."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpu_burnin.report import model
from gpu_burnin.report.model import Report
from gpu_burnin.system.files import parse_json, read_bytes

# Members that stand before the reasons.
FIELDS = ("schema", "run_id", "node", "level", "finished_at", "simulated", "interrupted", "verdict", "action")
_MOST_BYTES = 64 << 20
_HEAD_BYTES = 16 << 10
# As a run writes its report, each member of it begins a line with one space, and only the last line begins with a
# brace: so a member is found without the others, and a file that was cut has another end.
_MEMBER = b'\n "'
_END = b"\n}\n"


def read_head(path: Path) -> Report:
    """A report file's members FIELDS alone. Raises ReportError, also for a file that is not whole."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise model.ReportError(f"{path}: cannot be read as a report (it is not a regular file)")
            start = file.read(_HEAD_BYTES)
            end = os.pread(fd, len(_END), max(0, found.st_size - len(_END)))
    except OSError as error:
        raise model.ReportError(f"{path}: cannot be read as a report ({error.strerror})") from error
    head = _members(start, FIELDS) if end == _END else None
    return model.of_json(_checked(head or _all_of(path), FIELDS, path), str(path))


def read_parts(path: Path, names: Collection[str]) -> Report:
    """A report file's members FIELDS and `names`. Raises ReportError, also where it has none of that name."""
    return model.of_json(read_members(path, names), str(path))


def read_members(path: Path, names: Collection[str]) -> dict[str, Any]:
    """The same as JSON values that nobody has looked at yet: the results of checks take longer to look at than to
    parse."""
    data = read_report(path)
    wanted = {*FIELDS, *names}
    return _checked((_members(data, wanted) if data.endswith(_END) else None) or _all_of(path), wanted, path)


def _members(data: bytes, names: Collection[str]) -> dict[str, Any] | None:
    """These members of a report's beginning, or of all of it; None where it is not written as a run writes it."""
    found: dict[str, Any] = {}
    for name in names:
        key = f'\n "{name}": '.encode()
        at = data.find(key)
        begin = at + len(key)
        end = next((place for mark in (_MEMBER, _END) if (place := data.find(mark, begin)) > 0), -1)
        if min(at, end) < 0:
            return None
        try:
            found[name] = json.loads(data[begin:end].removesuffix(b","))
        except (ValueError, RecursionError):
            return None
    return found


def _all_of(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_report(path))
    except ValueError as error:
        raise model.ReportError(
            f"{path}: this is not a whole report ({error}); fetch it again, or test the host again"
        ) from error
    if not isinstance(found, dict):
        raise model.ReportError(f"{path}: this is not a burn-in report")
    return found


def read_report(path: Path) -> bytes:
    """A report file as it is. Raises ReportError."""
    try:
        return read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise model.ReportError(f"{path}: cannot be read as a report ({error.strerror})") from error


def _checked(found: dict[str, Any], wanted: Collection[str], path: Path) -> dict[str, Any]:
    model.refuse_version(found, str(path))
    if missing := {*wanted} - found.keys() - {"warnings"}:  # version 1.0 had none
        raise model.ReportError(f"{path}: this is not a valid report (no {', '.join(sorted(missing))} in it)")
    return {name: found[name] for name in wanted if name in found}
