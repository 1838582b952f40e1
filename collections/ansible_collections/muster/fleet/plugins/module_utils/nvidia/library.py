"""libnvidia-ml.so.1 as programs of the host find it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run

NAME = "libnvidia-ml.so.1"
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")


@dataclass(frozen=True)
class Library:
    """The library's file, and the driver's version that it is of. Both empty: there is none. None: not known."""

    version: str | None
    path: str | None


def find(run: Run) -> Library:
    """The library that the loader's cache names first; its real name ends in its version. Raises CommandError."""
    done = run(["/sbin/ldconfig", "-p"])
    if done.code != 0:
        raise CommandError(f"ldconfig -p failed: {done.err.strip()}")
    for line in done.out.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and name.split(" ")[0] == NAME and "i386" not in path:
            return Library(version_of(Path(path)), path)
    return Library("", "")


def version_of(path: Path) -> str | None:
    """The version in the real name of a library's file; None where the name has none."""
    match = _VERSION.search(str(path.resolve()))
    return match[1] if match else None
