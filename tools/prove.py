#!/usr/bin/env python3
"""`make test`: prove the project in stages, show what took how long, end with one line of counts.

Stages: lab (end to end on hosts, each role of site.yml, attacks, reboot), which waits for half of its time; and beside
it check (lint, types, unit tests), campaign (each fault of the burn-in seen, each healthy run passed), servers (real
etcd, API server and Prometheus on loopback) and molecule (roles that need hosts of their own).
A stage that fails does not stop the next one: the whole picture costs minutes, a second run costs more. What each stage
and the costliest tests and scenarios took, by the clock and in processor time, is in build/times.json. A stage that is
over its budget (tools/cpu_budgets.yaml, at the speed that it names) by a tenth has failed. What failed is named last,
with its reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import write_atomic
from gpu_burnin.system.host import busy_s
from tests.lab.cpu_group import CpuGroup, Used
from tools.budgets import CACHES, Budgets, compared, read_budgets
from tools.cpu_speed import SpeedMeter
from tools.molecule import OWN_HOSTS
from tools.results import Cost, Counts, Result, read_junit, read_molecule, read_plain

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build"
# So many of the costliest are printed and kept.
COSTLIEST = 15


class Group(Protocol):
    """A control group that counts what a stage uses."""

    def inside(self, words: Sequence[str]) -> list[str]: ...
    def environment(self) -> dict[str, str]: ...
    def used(self) -> Used: ...


class Speeds(Protocol):
    """Says how fast the processors were since a time of time.monotonic(); 1 is the speed of the budgets."""

    def speed(self, since: float) -> float: ...


Counter = Callable[[str], AbstractContextManager[Group]]
Meter = Callable[[float], AbstractContextManager[Speeds]]


@dataclass(frozen=True)
class Stage:
    """A command and how to read its result from its exit code and its output."""

    name: str
    command: list[str]
    read: Callable[[int, str], Result]


@dataclass
class Found:
    """What all stages have found so far; its lock is held by the lane that adds to it."""

    total: Counts = field(default_factory=Counts)
    took: dict[str, Cost] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, stage: str, result: Result, took: Cost) -> None:
        """Take in what a stage found."""
        self.took[stage] = took
        self.counts[stage] = result.counts
        self.total += result.counts
        self.costs |= {f"{stage}: {test}": cost for test, cost in result.costs.items()}
        self.failures |= {f"{stage}: {test}": reason for test, reason in result.failures.items()}


@dataclass(frozen=True)
class Runs:
    """How the stages run: beside others or alone, where their times go and of what they are, what they may cost and who
    measures it."""

    beside_others: bool
    times: Path
    of: Mapping[str, str]
    budgets: Budgets | None
    counter: Counter
    speeds: Speeds | None


def main() -> int:
    """Run the stages; 0 when every test of every stage passed and none is over its budget."""
    BUILD.mkdir(exist_ok=True)
    on_hosts, on_loopback = integration_tests()
    check = Stage("check", ["tools/check.sh", "--all"], junit("unit"))
    # The first draw of each fault, every seventh healthy node, no repeats: make campaign has them all.
    campaign = Stage("campaign", [sys.executable, "-m", "tests.campaign", "--each=7"], junit("campaign"))
    molecule = Stage("molecule", [sys.executable, "-m", "tools.molecule", *sorted(OWN_HOSTS)], read_molecule)
    lab = Stage("lab", pytest("lab", "not soak", on_hosts), junit("lab"))
    servers = Stage("servers", pytest("servers", "not soak", on_loopback), junit("servers"))
    # On a machine without caches it costs a third of all the others: it is no cost of the lab's tests.
    caches = Stage(CACHES, [sys.executable, "-m", "tests.lab", "prepare"], read_plain)
    return prove([[caches, lab], [check, campaign, servers, molecule]], BUILD / "times.json", read_budgets())


def integration_tests() -> tuple[list[Path], list[Path]]:
    """Those that need the lab's hosts, which have a number, and those of servers on loopback."""
    tests = sorted((REPOSITORY / "tests/integration").glob("test_*.py"))
    on_hosts = [path for path in tests if path.name[len("test_")].isdigit()]
    return on_hosts, [path for path in tests if path not in on_hosts]


def pytest(name: str, marked: str, paths: Sequence[Path]) -> list[str]:
    """The command that runs the tests of these files and folders with these marks; without any: all of them."""
    report = f"--junitxml={BUILD / name}.xml"
    places = [str(path.relative_to(REPOSITORY)) for path in paths]
    return [sys.executable, "-m", "pytest", "-v", *(["-m", marked] if marked else []), report, *places]


def junit(name: str) -> Callable[[int, str], Result]:
    """Reads that file of the build."""
    return lambda rc, out: read_junit(BUILD / f"{name}.xml", rc, out)


def prove(
    lanes: Sequence[Sequence[Stage]],
    times: Path,
    budgets: Budgets | None = None,
    counter: Counter = CpuGroup,
    meter: Meter = SpeedMeter,
    of: Mapping[str, str] | None = None,
) -> int:
    """Run these lanes beside each other, the stages of each one after the other; write what they took; 0 when all
    tests passed and no stage is over its budget. Without `budgets` a stage may take what it takes.

    `of`: what makes a run the same one (a commit, a seed). One of the same that was interrupted goes on: a stage that
    had ended, however it ended, counts as it was. Without it every stage runs.
    """
    found = ended_before(times, lanes, of) if of else Found()
    started, busy = time.monotonic(), busy_s()
    measured = meter(budgets.piece_s) if budgets is not None else nullcontext()
    try:
        with measured as speeds, ThreadPoolExecutor(len(lanes)) as pool:
            runs = Runs(len(lanes) > 1, times, of or {}, budgets, counter, speeds)
            for lane in [pool.submit(_follow, lane, found, runs) for lane in lanes]:
                lane.result()
    except GpuBurninError as error:
        print(f"prove: {error}", file=sys.stderr)
        return 2
    share = (busy_s() - busy) / (time.monotonic() - started) / (os.cpu_count() or 1)
    if budgets is not None:
        found.total += _judge(found, budgets)
    print_costs(found.took, found.costs, budgets)
    print(f"== {time.monotonic() - started:.0f} s in all; the processors were busy for {share:.0%} of it")
    for name, reason in found.failures.items():
        print(f"FAILED {name}: {reason}")
    print(found.total)
    return 1 if found.total.failed else 0


def _follow(lane: Sequence[Stage], found: Found, runs: Runs) -> None:
    for stage in lane:
        if stage.name in found.took:
            print(f"== {stage.name} had ended before: {found.counts[stage.name]}", flush=True)
            continue
        result, took = _stage(stage, runs)
        with found.lock:
            found.add(stage.name, result, took)
            write_times(runs.times, found, runs.budgets, runs.of)


def _judge(found: Found, budgets: Budgets) -> Counts:
    """Take in which stages are over their budgets: each is one failure."""
    judged = {stage: compared(stage, took.used.all_s, budgets, took.speed) for stage, took in found.took.items()}
    over = {f"{stage}: budget": words for stage, (words, fails) in judged.items() if fails}
    found.failures |= over
    return Counts(0, len(over), 0)


def write_times(path: Path, found: Found, budgets: Budgets | None, of: Mapping[str, str]) -> None:
    """Write what the stages took and counted as they ended, with their budgets, what failed, and the costliest tests
    and scenarios."""
    given = {name: budget for name in found.took if budgets is not None and (budget := budgets.of(name)) is not None}
    stages = {
        name: cost.to_json()
        | asdict(found.counts[name])
        | ({"speed": round(cost.speed, 3), "budget_cpu_s": given[name]} if name in given else {})
        for name, cost in found.took.items()
    }
    most = {name: cost.to_json() for name, cost in costliest(found.costs)}
    written = {"of": dict(of), "stages": stages, "failures": found.failures, "costliest": most}
    write_atomic(path, (json.dumps(written, indent=1) + "\n").encode(), 0o644)


def ended_before(path: Path, lanes: Sequence[Sequence[Stage]], of: Mapping[str, str]) -> Found:
    """What an interrupted run of the same has written; nothing where all its stages had ended, or of another one."""
    found = Found()
    try:
        written = json.loads(path.read_text())
    except FileNotFoundError:
        return found
    ended = written["stages"]
    if written["of"] != of or all(stage.name in ended for lane in lanes for stage in lane):
        return found
    found.failures, found.costs = written["failures"], {n: Cost.of_json(c) for n, c in written["costliest"].items()}
    for name, values in ended.items():
        counts = Counts(values["passed"], values["failed"], values["skipped"])
        found.add(name, Result(counts), Cost.of_json(values))
    return found


def print_costs(took: Mapping[str, Cost], costs: Mapping[str, Cost], budgets: Budgets | None) -> None:
    """Print the same in a few lines."""
    print("== what the stages took")
    for name, cost in took.items():
        stands = "" if budgets is None else f": {compared(name, cost.used.all_s, budgets, cost.speed)[0]}"
        print(f"{cost}  {name}{stands}")
    print("== the costliest")
    for name, cost in costliest(costs):
        print(f"{cost}  {name}")


def costliest(costs: Mapping[str, Cost]) -> list[tuple[str, Cost]]:
    """Those that took the most processor time, the most first; where nobody counted it, those that took longest."""
    return sorted(costs.items(), key=lambda item: (-item[1].used.all_s, -item[1].seconds))[:COSTLIEST]


def _stage(stage: Stage, runs: Runs) -> tuple[Result, Cost]:
    """Run a stage and show its output as it comes, under its name where others run beside it."""
    print(f"== {stage.name}", flush=True)
    started = time.monotonic()
    lines = []
    with runs.counter(f"muster-prove-{os.getpid()}-{stage.name}") as group:
        with subprocess.Popen(
            group.inside(stage.command),
            cwd=REPOSITORY,
            env={**os.environ, **group.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            for line in process.stdout or ():
                sys.stdout.write(f"{stage.name} | {line}" if runs.beside_others else line)
                sys.stdout.flush()
                lines.append(line)
        used = group.used()
    result = stage.read(process.returncode, "".join(lines))
    took = Cost(time.monotonic() - started, used, runs.speeds.speed(started) if runs.speeds else 1.0)
    print(f"== {stage.name}: {result.counts} in {took.seconds:.0f} s ({used.all_s:.0f} CPU s)", flush=True)
    return result, took


if __name__ == "__main__":
    sys.exit(main())
