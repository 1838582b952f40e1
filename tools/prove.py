#!/usr/bin/env python3
"""`make test`: prove the project in stages, show how long each took, end with one line of counts.

Stages: check (lint, types, unit tests), campaign (each fault of the burn-in seen, each healthy run passed), molecule (a
scenario for each role), lab (end to end, attacks, reboot).
A stage that fails does not stop the next one: the whole picture costs minutes, a second run costs more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build"


@dataclass(frozen=True)
class Counts:
    """Tests of a stage."""

    passed: int
    failed: int
    skipped: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def main() -> int:
    """Run the stages; 0 when every test of every stage passed."""
    BUILD.mkdir(exist_ok=True)
    roles = sorted(path.parents[2].name for path in REPOSITORY.glob("roles/*/molecule/default/molecule.yml"))
    total = Counts(0, 0, 0)
    lab = [sys.executable, "-m", "pytest", "-v", "tests/integration", f"--junitxml={BUILD / 'lab.xml'}"]
    stages: tuple[tuple[str, list[str], Callable[[int, str], Counts]], ...] = (
        ("check", ["tools/check.sh", "--all"], lambda rc, _: _from_junit("unit.xml", rc)),
        ("campaign", [sys.executable, "-m", "tests.campaign"], lambda rc, _: _from_junit("campaign.xml", rc)),
        ("molecule", [sys.executable, "tools/molecule.py", *roles], lambda rc, out: _from_molecule(out, rc)),
        ("lab", lab, lambda rc, _: _from_junit("lab.xml", rc)),
    )
    for name, command, count in stages:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        rc, out = _run(command)
        counts = count(rc, out)
        total += counts
        print(
            f"== {name}: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped "
            f"in {time.monotonic() - started:.0f} s",
            flush=True,
        )
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


def _run(command: list[str]) -> tuple[int, str]:
    """Run a stage, showing its output as it comes."""
    lines = []
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


def _from_junit(name: str, rc: int) -> Counts:
    """The counts in a JUnit file. A stage that failed without a failed test (a linter, say) counts as one failure."""
    path = BUILD / name
    if not path.exists():
        return Counts(0, 1, 0)
    passed = failed = skipped = 0
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        left_out = int(suite.get("skipped", 0))
        failed += bad
        skipped += left_out
        passed += int(suite.get("tests", 0)) - bad - left_out
    return Counts(passed, max(failed, 1 if rc else 0), skipped)


def _from_molecule(out: str, rc: int) -> Counts:
    found = re.search(r"^molecule: (\d+) passed, (\d+) failed", out, re.MULTILINE)
    passed, failed = (int(found[1]), int(found[2])) if found else (0, 1)
    return Counts(passed, max(failed, 1 if rc else 0), 0)


if __name__ == "__main__":
    sys.exit(main())
