#!/usr/bin/env python3
"""`make test`: prove the project in stages, show what took how long, end with one line of counts.

Stages: lab (end to end on hosts, attacks, reboot) and servers (real etcd, API server and Prometheus on loopback), which
wait for a third of their time; and beside them check (lint, types, unit tests), campaign (each fault of the burn-in
seen, each healthy run passed) and molecule (a scenario for each role).
A stage that fails does not stop the next one: the whole picture costs minutes, a second run costs more. The times of
the stages and of the longest tests and scenarios are in build/times.json. What failed is named last, with its reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from gpu_burnin.system.files import write_atomic

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build"
# So many of the longest are printed and kept.
LONGEST = 10
# So much of the reason of each failure is told at the end; the whole stands in the output of its stage.
REASON_LENGTH = 300
# What Ansible tells of a command that failed.
_KEYS = "changed|cmd|delta|end|failed_when_result|msg|rc|start|stderr|stderr_lines|stdout|stdout_lines"


@dataclass(frozen=True)
class Counts:
    """Tests of a stage."""

    passed: int
    failed: int
    skipped: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Result:
    """What a stage found. `seconds`: how long each of its tests or scenarios took, by its name.

    `failures`: the reason of each that failed, in one line, by its name.
    """

    counts: Counts
    seconds: dict[str, float]
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A command and how to read its result from its exit code and its output."""

    name: str
    command: list[str]
    read: Callable[[int, str], Result]


@dataclass(frozen=True)
class Took:
    """What a stage took."""

    stage: str
    seconds: float


@dataclass
class Found:
    """What all stages have found so far; its lock is held by the lane that adds to it."""

    total: Counts = Counts(0, 0, 0)
    took: list[Took] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, stage: str, result: Result, took_s: float) -> None:
        """Take in what a stage found."""
        self.took.append(Took(stage, took_s))
        self.total += result.counts
        self.seconds |= {f"{stage}: {test}": s for test, s in result.seconds.items()}
        self.failures |= {f"{stage}: {test}": reason for test, reason in result.failures.items()}


def main() -> int:
    """Run the stages; 0 when every test of every stage passed."""
    BUILD.mkdir(exist_ok=True)
    roles = sorted(path.parents[2].name for path in REPOSITORY.glob("roles/*/molecule/default/molecule.yml"))
    tests = sorted((REPOSITORY / "tests/integration").glob("test_*.py"))
    on_hosts = [path for path in tests if path.name[len("test_")].isdigit()]
    check = Stage("check", ["tools/check.sh", "--all"], _junit("unit"))
    # Each fault, and a third of the draws of where and when: make campaign has them all.
    campaign = Stage("campaign", [sys.executable, "-m", "tests.campaign", "--each=3"], _junit("campaign"))
    molecule = Stage("molecule", [sys.executable, "-m", "tools.molecule", *roles], read_molecule)
    lab = Stage("lab", _pytest("lab", on_hosts), _junit("lab"))
    servers = Stage("servers", _pytest("servers", [path for path in tests if path not in on_hosts]), _junit("servers"))
    return prove([[lab, servers], [check, campaign, molecule]], BUILD / "times.json")


def _pytest(name: str, paths: Sequence[Path]) -> list[str]:
    junit = f"--junitxml={BUILD / name}.xml"
    return [sys.executable, "-m", "pytest", "-v", "-m", "not soak", junit, *(str(path.relative_to(REPOSITORY)) for path in paths)]


def _junit(name: str) -> Callable[[int, str], Result]:
    return lambda rc, out: read_junit(BUILD / f"{name}.xml", rc, out)


def prove(lanes: Sequence[Sequence[Stage]], times: Path) -> int:
    """Run these lanes beside each other, the stages of each one after the other; write what they took; 0 when all
    tests passed.
    """
    found = Found()
    started, busy = time.monotonic(), _busy_s()
    with ThreadPoolExecutor(len(lanes)) as pool:
        for lane in [pool.submit(_follow, lane, len(lanes) > 1, found, times) for lane in lanes]:
            lane.result()
    share = (_busy_s() - busy) / (time.monotonic() - started) / (os.cpu_count() or 1)
    print_times(found.took, found.seconds)
    print(f"== {time.monotonic() - started:.0f} s in all; the processors were busy for {share:.0%} of it")
    for name, reason in found.failures.items():
        print(f"FAILED {name}: {reason}")
    print(found.total)
    return 1 if found.total.failed else 0


def _follow(lane: Sequence[Stage], beside_others: bool, found: Found, times: Path) -> None:
    for stage in lane:
        result, took_s = _stage(stage, beside_others)
        with found.lock:
            found.add(stage.name, result, took_s)
            write_times(times, found.took, found.seconds)


def write_times(path: Path, took: Sequence[Took], seconds: Mapping[str, float]) -> None:
    """Write the stages as they ended and the longest tests and scenarios, in seconds."""
    stages = {one.stage: round(one.seconds, 1) for one in took}
    written = {"stages": stages, "longest": {name: round(s, 1) for name, s in longest(seconds)}}
    write_atomic(path, (json.dumps(written, indent=1) + "\n").encode(), 0o644)


def print_times(took: Sequence[Took], seconds: Mapping[str, float]) -> None:
    """Print the same in a few lines."""
    print("== times: " + ", ".join(f"{one.stage} {one.seconds:.0f} s" for one in took))
    for name, s in longest(seconds):
        print(f"{s:7.1f} s  {name}")


def longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """The ten that took longest, the longest first."""
    return sorted(seconds.items(), key=lambda item: -item[1])[:LONGEST]


def _busy_s() -> float:
    """Processor time that this machine has spent since its start, in seconds (proc(5), /proc/stat)."""
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _stage(stage: Stage, beside_others: bool) -> tuple[Result, float]:
    """Run a stage and show its output as it comes, under its name where others run beside it."""
    print(f"== {stage.name}", flush=True)
    started = time.monotonic()
    lines = []
    with subprocess.Popen(
        stage.command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(f"{stage.name} | {line}" if beside_others else line)
            sys.stdout.flush()
            lines.append(line)
    result = stage.read(process.returncode, "".join(lines))
    took_s = time.monotonic() - started
    print(f"== {stage.name}: {result.counts} in {took_s:.0f} s", flush=True)
    return result, took_s


def read_junit(path: Path, rc: int, out: str) -> Result:
    """What a JUnit file says. A stage that failed without a failed test (a linter, say) counts as one failure."""
    if not path.exists():
        return Result(Counts(0, 1, 0), {}, {"no result": _last_line(out)})
    passed = skipped = 0
    seconds: dict[str, float] = {}
    failures: dict[str, str] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        seconds[name] = float(case.get("time", 0))
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            failures[name] = _one_line(bad.get("message") or bad.text or "no reason given")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    if rc and not failures:
        steps = re.findall(r"^check: (.+?) FAILED \((.+)\)$", out, re.MULTILINE)
        failures |= {name: _one_line(reason) for name, reason in steps} or {f"exit code {rc}": _last_line(out)}
    return Result(Counts(passed, len(failures), skipped), seconds, failures)


def read_molecule(rc: int, out: str) -> Result:
    """What the lines of tools/molecule.py say."""
    each = re.findall(r"^molecule: (\w+) (passed in|FAILED after) (\d+) s", out, re.MULTILINE)
    passed = sum(how == "passed in" for _, how, _ in each)
    failures = {}
    for role, tail in re.findall(r"^molecule: (\w+) FAILED after [^\n]*\n(.*?)(?=^molecule: |\Z)", out, re.M | re.S):
        failures[role] = _one_line(_said(tail)) if tail.startswith("fatal: ") else _last_line(tail)
    if rc and not failures:
        failures = {f"exit code {rc}": _last_line(out)}
    return Result(Counts(passed, len(failures), 0), {role: float(s) for role, _, s in each}, failures)


def _said(fatal: str) -> str:
    """Of a failed task, as Ansible tells it: the host, and what the command said last, else the message, else all."""
    host, _, told = fatal.partition("\n")
    values = dict(re.findall(rf"^({_KEYS}):\s(.*?)(?=^(?:{_KEYS}):\s|\Z)", told, re.MULTILINE | re.DOTALL))
    error, message = (values.get(key, "").strip("\n '\"|>-") for key in ("stderr", "msg"))
    said = error.splitlines()[-1] if error else message
    return f"{host} {said}" if said else fatal


def _one_line(text: str) -> str:
    return " ".join(text.split())[:REASON_LENGTH]


def _last_line(out: str) -> str:
    lines = [line for line in out.splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())
