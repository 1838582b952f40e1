"""Grants of power waves: a site's supply may not stand many nodes whose GPUs swing at once. Standard library only.

Two small files in a directory of the node's state. `request.json` is written by the power check (one worker, for the
node): when it asked (`asked_at`, RFC 3339 UTC with microseconds: also the name of the request), `boot_id`, `pid` of
the burn-in, how long it waits (`wait_s`), how long its waves take (`waves_s`), and `state`: waiting, then running
and over, or given_up when no grant came in time. `grant` is written by the controller: the `asked_at` of the request
it grants. A grant that names another request never counts, so one that is left of an earlier run is without effect.
`granted_at` and `over_at` (the same form, null before) stay in the request's file until the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.files import parse_json, read_text, write_atomic

REQUEST, GRANT = "request.json", "grant"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class State(StrEnum):
    """What became of a request."""

    NONE = "none"  # nothing is asked, or the burn-in that asked is gone
    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class Request:
    """A request for power waves; times in seconds."""

    asked_at: str
    boot_id: str
    pid: int
    wait_s: float
    waves_s: float
    state: State
    granted_at: str | None = None
    over_at: str | None = None


_ENDS = (State.OVER, State.GIVEN_UP)
NO_REQUEST = Request("", "", 0, 0.0, 0.0, State.NONE)


def ask(directory: Path, wait_s: float, waves_s: float, state: State = State.WAITING) -> Request:
    """Write a new request, in the place of any before it; a grant that lies there is removed.

    Raises GpuBurninError when the directory cannot be written.
    """
    # Workers come and go; it is their burn-in, the parent, that has the grant.
    now = _now()
    request = Request(now, _boot_id(), os.getppid(), wait_s, waves_s, state, now if state is State.RUNNING else None)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / GRANT).unlink(missing_ok=True)
        _write(directory, request)
    except OSError as error:
        raise GpuBurninError(
            f"{directory} cannot be written to ask for power waves: {error.strerror or error}; fix it and test again"
        ) from error
    return request


def granted(directory: Path, request: Request) -> bool:
    """Whether there is a grant for exactly this request."""
    with contextlib.suppress(OSError, UnicodeDecodeError):  # not there yet, or no text: no grant
        return read_text(directory / GRANT, follow=False).strip() == request.asked_at
    return False


def move(directory: Path, request: Request, state: State) -> Request:
    """Write that the request is in another state; with its end the grant goes. Raises GpuBurninError."""
    moved = replace(request, state=state)
    if state is State.RUNNING:
        moved = replace(moved, granted_at=_now())
    elif state in _ENDS:
        moved = replace(moved, over_at=_now())
    try:
        _write(directory, moved)
        if state in _ENDS:
            (directory / GRANT).unlink(missing_ok=True)
    except OSError as error:
        raise GpuBurninError(
            f"{directory} cannot be written to say that power waves are {state}: {error.strerror or error}"
        ) from error
    return moved


def state(directory: Path) -> Request:
    """The request of this node; NO_REQUEST where none was made, or the burn-in that made it has ended in between.

    A request that is over or given up stays to be read until the next one. Raises GpuBurninError for a file that
    cannot be read.
    """
    path = directory / REQUEST
    try:
        request = from_json(Request, parse_json(read_text(path, follow=False)), tolerant=True)
    except FileNotFoundError:
        return NO_REQUEST
    except PermissionError as error:
        raise GpuBurninError(f"{path} cannot be read; run as root") from error
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise GpuBurninError(f"{path} is not a request for power waves ({error}): remove it") from error
    ended = request.boot_id != _boot_id() or not Path(f"/proc/{request.pid}").exists()
    return NO_REQUEST if ended and request.state in (State.WAITING, State.RUNNING) else request


def grant(directory: Path) -> Request:
    """Grant the request that waits. Raises GpuBurninError when none does."""
    request = state(directory)
    if request.state is not State.WAITING:
        raise GpuBurninError(f"no burn-in of this node waits for a grant of power waves (state: {request.state})")
    give(directory, request)
    return request


def give(directory: Path, request: Request) -> None:
    """Grant exactly this request. Raises GpuBurninError where that cannot be written."""
    try:
        write_atomic(directory / GRANT, f"{request.asked_at}\n".encode())
    except OSError as error:
        raise GpuBurninError(f"{directory} cannot be written: {error.strerror or error}; run as root") from error


def _write(directory: Path, request: Request) -> None:
    write_atomic(directory / REQUEST, (json.dumps(to_json(request)) + "\n").encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _boot_id() -> str:
    return read_text(_BOOT_ID).strip()
