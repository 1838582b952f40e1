"""What a report says first, read without the rest: of thousands of reports, most say PASS and no more is asked."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from gpu_burnin.report import model
from gpu_burnin.types import Verdict

# Members that stand before the reasons, and their types.
FIELDS: dict[str, type] = {
    "schema": str,
    "run_id": str,
    "node": str,
    "level": str,
    "finished_at": str,
    "simulated": bool,
    "interrupted": bool,
    "verdict": str,
    "action": str,
}
_HEAD_BYTES = 16 << 10
# Only the last line of a report begins with a brace: a file that was cut has another end.
_END = b"\n}\n"
_SPACE = re.compile(r"[ \t\n\r]*")


def read_head(path: Path) -> dict[str, Any]:
    """The members FIELDS of a report file. Raises ReportError, also for a file that is not whole."""
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
    try:
        head = _members(codecs.getincrementaldecoder("utf-8")().decode(start))
    except ValueError:
        head = {}
    if end != _END or not all(isinstance(head.get(name), kind) for name, kind in FIELDS.items()):
        raise model.ReportError(f"{path}: this is not a whole report; fetch it again, or test the host again")
    model.refuse_version(head, str(path))
    if head["verdict"] not in [*Verdict]:
        raise model.ReportError(f"{path}: {head['verdict'][:40]!r} is no verdict; fetch the report again")
    return head


def _members(text: str) -> dict[str, Any]:
    """The first members of a JSON object, up to the last of FIELDS. Raises ValueError where `text` is too short."""
    decoder, found = json.JSONDecoder(), dict[str, Any]()
    at = _after(text, 0, "{")
    while not found.keys() >= FIELDS.keys():
        if found:
            at = _after(text, at, ",")
        key, at = decoder.raw_decode(text, _skip(text, at))
        found[key], at = decoder.raw_decode(text, _skip(text, _after(text, at, ":")))
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"no {sign} at {at}")
    return at + 1
