#!/usr/bin/env python3
"""`make mutants`: break one thing of the product at a time; the tests of `make test` must fail, by the one expected.

The mutants are in tools/mutants.yaml. Each is made in a copy of this checkout, below build/. A mutant that does not
apply, or that no expected test sees, is a failure; so is a test that fails without any mutant, which would show
nothing. Ends with one line of counts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpu_burnin.system.prose import listed
from tools.prove import BUILD, REPOSITORY
from tools.results import read_junit

FILE = Path(__file__).with_name("mutants.yaml")


@dataclass(frozen=True)
class Mutant:
    """What is broken: in `file`, `old` becomes `new`. `tests` are run for it, and one with `by` in its name fails."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    by: str

    def applied(self, text: str) -> str:
        """The file with the mutant in it. Raises ValueError where the place is not there, or not the only one."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file} has {self.old!r} {text.count(self.old)} times, not once: correct {FILE.name}"
            )
        return text.replace(self.old, self.new)


def main(names: Sequence[str]) -> int:
    """0 when each mutant (whose name has one of the words given, where there are any) was seen as expected."""
    mutants = [one for one in read_mutants() if not names or any(word in one.name for word in names)]
    copy = BUILD / "mutants"
    shutil.rmtree(copy, ignore_errors=True)
    try:
        _copy(copy)
        healthy = _failed(copy, sorted({place for one in mutants for place in one.tests}))
        print(f"mutants: without any: {listed(healthy) if healthy else 'no test fails'}", flush=True)
        told = [(one, wrong(one, copy)) for one in mutants] if not healthy else []
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    missed = [one.name for one, why in told if why]
    print(f"{len(told) - len(missed)} passed, {len(missed) + bool(healthy)} failed")
    return 1 if missed or healthy or not told else 0


def read_mutants(path: Path = FILE) -> list[Mutant]:
    """All of the file. Raises TypeError where one lacks a key or has one too many."""
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in yaml.safe_load(path.read_text())]


def wrong(mutant: Mutant, copy: Path) -> str:
    """Why the mutant was not seen as expected, "" where it was; says so, and puts the copy back."""
    file = copy / mutant.file
    before = file.read_text()
    try:
        file.write_text(mutant.applied(before))
        failed = _failed(copy, mutant.tests)
        expected = [name for name in failed if mutant.by in name]
        why = "" if expected else f"no test with {mutant.by!r} in its name failed, but {listed(failed) or 'none'}"
        seen = listed(expected)
    except ValueError as error:
        why, seen = str(error), ""
    finally:
        file.write_text(before)
    print(f"mutants: {mutant.name}: {'MISSED: ' + why if why else 'seen by ' + seen}", flush=True)
    return why


def _failed(copy: Path, tests: Iterable[str]) -> list[str]:
    """The tests that fail in the copy, of those that `make test` runs."""
    report = copy / "build/mutant.xml"
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak", "-n", "2"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "MUSTER_REPOSITORY": str(copy)}
    done = subprocess.run(
        [*words, f"--junitxml={report}", *tests], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    return list(read_junit(report, done.returncode, done.stdout + done.stderr).failures)


def _copy(target: Path) -> None:
    """What git knows of this checkout as it is now, and its Python environment."""
    tracked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(tracked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    (target / "build").mkdir(exist_ok=True)
    if not (target / ".venv").exists():
        (target / ".venv").symlink_to(REPOSITORY / ".venv")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
