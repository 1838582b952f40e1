"""Commands of a host, run to an end or to a deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

QUERY_TIMEOUT_S = 30.0
# A killed process ends at once, unless it hangs in the kernel, where nothing ends it.
_KILLED_S = 1.0


class CommandError(Exception):
    """A command that gave no answer: not there, or not done in time. One sentence without a full stop."""


class NotInstalledError(CommandError):
    """The host does not have the program."""


@dataclass(frozen=True)
class Output:
    """What a command ended with; negative `code`: the signal that killed it."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """A function that runs a command to its end. Raises CommandError."""

    def __call__(self, command: Sequence[str], timeout_s: float = QUERY_TIMEOUT_S) -> Output: ...


def run_command(
    command: Sequence[str], timeout_s: float = QUERY_TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> Output:
    """Run a command without input, in plain English; `environment` is added to this process' own.

    One that is not done in time is killed, and left behind if it does not even end then: a process that hangs in a
    driver cannot be killed. Raises CommandError.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NotInstalledError(f"{command[0]} is not installed") from error
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_S)
        raise CommandError(f"{command[0]} gave no answer in {timeout_s:g} s") from error
    return Output(process.returncode, out, err)
