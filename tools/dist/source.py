"""The commit that a release is built from: its files, its time, its version."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .error import DistError

_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """The files of a commit in a folder of their own; nothing of the checkout beside them can get into a release."""

    tree: Path
    commit: str
    epoch_s: int
    version: str


def run(command: Sequence[object], what: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> bytes:
    """Standard output of a program. Raises DistError with the end of what it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, env=env, cwd=cwd, check=False)
    except FileNotFoundError:
        raise DistError(f"{what}: {words[0]} is not installed; run `make setup-lab`") from None
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        raise DistError(f"{what}: {words[0]} failed (exit code {done.returncode}): {' / '.join(lines[-3:])}")
    return done.stdout


def export(checkout: Path, commit: str, directory: Path) -> Source:
    """Lay the files of a commit into the empty `directory`, with the modes that git knows. Raises DistError."""
    git = ["git", "-C", checkout]
    found = run([*git, "rev-parse", "--verify", f"{commit}^{{commit}}"], f"commit {commit}").decode().strip()
    epoch_s = int(run([*git, "show", "-s", "--format=%ct", found], f"commit {commit}"))
    archive = run([*git, "-c", "tar.umask=0022", "archive", "--format=tar", found], f"commit {commit}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory)  # written by git, from our own repository
    version = _VERSION.search((directory / "gpu_burnin/__init__.py").read_text())
    if version is None:
        raise DistError(f"gpu_burnin/__init__.py of commit {commit}: has no __version__; write one")
    return Source(directory, found, epoch_s, version[1])
