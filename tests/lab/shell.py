"""Run commands of the host system; a failure is one sentence with the command and what it said."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

# Before a command of minutes: it ends with the program that started it, however that ended (setpriv(1)).
WITH_US = ("setpriv", "--pdeathsig", "TERM")
# So many characters of a command stand in the sentence: what it said comes after them.
SHOWN = 100


class LabError(Exception):
    """The lab could not do what was asked; the message says what and how to mend it."""


def run(command: Sequence[str | Path], *, check: bool = True, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run `command`, return its standard output.

    Raises LabError with the last lines of its standard error when it fails and `check` is set.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, cwd=cwd, check=False)
    except FileNotFoundError:
        raise LabError(
            f"the command {words[0]!r} is missing: run `make setup-lab`, which installs what the lab needs"
        ) from None
    if check and done.returncode != 0:
        said = " | ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise LabError(f"`{shorten(' '.join(words), SHOWN)}` failed with exit code {done.returncode}: {said}")
    return done.stdout


def succeeds(command: Sequence[str | Path]) -> bool:
    """Whether `command` exits with 0."""
    return subprocess.run([str(word) for word in command], capture_output=True, check=False).returncode == 0
