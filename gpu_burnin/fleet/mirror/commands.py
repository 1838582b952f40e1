"""Commands of the host system; a failure is one sentence with the command and what it said."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TextIO

from gpu_burnin.errors import GpuBurninError

# Before a command of minutes: it ends with the program that started it, however that ended (setpriv(1)).
WITH_US = ("setpriv", "--pdeathsig", "TERM")
# So many characters of a command stand in the sentence: what it said comes after them.
SHOWN = 100


class CommandError(GpuBurninError):
    """A command is missing or failed."""


def run(command: Sequence[str | Path], *, check: bool = True, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run `command`, return its standard output.

    Raises CommandError with the last lines of its standard error when it fails and `check` is set.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, cwd=cwd, check=False)
    except FileNotFoundError:
        raise CommandError(
            f"the command {words[0]!r} is missing: install it (`make setup-lab` installs what a lab needs)"
        ) from None
    if check and done.returncode != 0:
        said = " | ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise CommandError(f"`{shorten(' '.join(words), SHOWN)}` failed with exit code {done.returncode}: {said}")
    return done.stdout


def succeeds(command: Sequence[str | Path]) -> bool:
    """Whether `command` exits with 0."""
    return subprocess.run([str(word) for word in command], capture_output=True, check=False).returncode == 0


def start(
    command: Sequence[str | Path], *, cwd: Path | None = None, said: TextIO | None = None
) -> subprocess.Popen[str]:
    """Begin a command of minutes, which ends with us at the latest; what it says goes to `said`, or nowhere."""
    words = [*WITH_US, *(str(word) for word in command)]
    where = said or subprocess.DEVNULL
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=where, stderr=where, text=True, cwd=cwd)


def end(process: subprocess.Popen[str]) -> None:
    """End a command that was begun, if it has not ended, and wait for that."""
    process.terminate()
    process.wait()
