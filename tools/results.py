"""What a stage found: counts, what each test cost and why it failed; from JUnit files and molecule's lines."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.cpu_group import Used

# So much of the reason of each failure is told at the end; the whole stands in the output of its stage.
REASON_LENGTH = 300
# What Ansible tells of a command that failed.
_KEYS = "changed|cmd|delta|end|failed_when_result|msg|rc|start|stderr|stderr_lines|stdout|stdout_lines"
_SCENARIO = re.compile(
    r"^molecule: (\S+) (passed in|FAILED after) (\d+) s \((\d+) CPU s here, (\d+) on hosts\)", re.MULTILINE
)


@dataclass(frozen=True)
class Counts:
    """Tests of a stage."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Cost:
    """What a stage, test or scenario took: seconds by the clock, and processor time; of a stage also at which speed of
    the processors (1 is that of the budgets)."""

    seconds: float
    used: Used = field(default_factory=Used)
    speed: float = 1.0

    def __str__(self) -> str:
        return f"{self.seconds:7.1f} s {self.used.here_s:7.1f} CPU s here {self.used.hosts_s:7.1f} on hosts"

    def to_json(self) -> dict[str, float]:
        return {
            "seconds": round(self.seconds, 1),
            "cpu_here_s": round(self.used.here_s, 1),
            "cpu_hosts_s": round(self.used.hosts_s, 1),
        }

    @classmethod
    def of_json(cls, written: Mapping[str, float]) -> Cost:
        """What to_json has written."""
        return cls(written["seconds"], Used(written["cpu_here_s"], written["cpu_hosts_s"]))


@dataclass(frozen=True)
class Result:
    """What a stage found. `costs`: of each of its tests or scenarios, by its name.

    `failures`: the reason of each that failed, in one line, by its name.
    """

    counts: Counts
    costs: dict[str, Cost] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def read_junit(path: Path, rc: int, out: str) -> Result:
    """What a JUnit file says. A stage that failed without a failed test (a linter, say) counts as one failure."""
    if not path.exists():
        return Result(Counts(0, 1, 0), {}, {"no result": last_line(out)})
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        return Result(Counts(0, 1, 0), {}, {"no result": f"{path.name} cannot be read: {error}"})
    passed = skipped = 0
    shared_s = 0.0
    costs: dict[str, Cost] = {}
    failures: dict[str, str] = {}
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        told = {one.get("name"): one.get("value", "0") for one in case.iter("property")}
        used = Used(float(told.get("cpu_here_s", 0)), float(told.get("cpu_hosts_s", 0)))
        costs[name] = Cost(float(case.get("time", 0)), used)
        shared_s += float(told.get("cpu_shared_s", 0))
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            failures[name] = one_line(bad.get("message") or bad.text or "no reason given")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    if shared_s:
        costs["(shared by many tests, and ended after the last)"] = Cost(0.0, Used(shared_s))
    if rc and not failures:
        steps = re.findall(r"^check: (.+?) FAILED \((.+)\)$", out, re.MULTILINE)
        failures |= {name: one_line(reason) for name, reason in steps} or {f"exit code {rc}": last_line(out)}
    return Result(Counts(passed, len(failures), skipped), costs, failures)


def read_molecule(rc: int, out: str) -> Result:
    """What the lines of tools/molecule.py say."""
    each = _SCENARIO.findall(out)
    passed = sum(how == "passed in" for _, how, *_ in each)
    failures = {}
    for role, tail in re.findall(r"^molecule: (\S+) FAILED after [^\n]*\n(.*?)(?=^molecule: |\Z)", out, re.M | re.S):
        failures[role] = one_line(_failure(tail)) if tail.startswith("fatal: ") else last_line(tail)
    if rc and not failures:
        failures = {f"exit code {rc}": last_line(out)}
    costs = {role: Cost(float(s), Used(float(here), float(hosts))) for role, _, s, here, hosts in each}
    return Result(Counts(passed, len(failures), 0), costs, failures)


def read_plain(rc: int, out: str) -> Result:
    """Of a command that is one test: it passed when it ended with 0."""
    return Result(Counts(0, 1, 0), {}, {f"exit code {rc}": last_line(out)}) if rc else Result(Counts(1, 0, 0))


def _failure(fatal: str) -> str:
    """Of a failed task, as Ansible tells it: the host, and what the command said last, else the message, else all."""
    host, _, told = fatal.partition("\n")
    values = dict(re.findall(rf"^({_KEYS}):\s(.*?)(?=^(?:{_KEYS}):\s|\Z)", told, re.MULTILINE | re.DOTALL))
    error, message = (values.get(key, "").strip("\n '\"|>-") for key in ("stderr", "msg"))
    said = error.splitlines()[-1] if error else message
    return f"{host} {said}" if said else fatal


def one_line(text: str) -> str:
    """The beginning of a text, without line breaks."""
    return " ".join(text.split())[:REASON_LENGTH]


def last_line(out: str) -> str:
    """The last line that is not empty."""
    lines = [line for line in out.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "no output"
