"""A week of jobs in simulated time over the scaler's own decide(): node-hours, waits, and how often machines switch.

Beside it two other sites: one with all machines on, and the least that the jobs could need, which is their own
node-hours: a machine that is on for no longer than its job, and boots in no time.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gpu_burnin.scaler.course import Stage, stage
from gpu_burnin.scaler.model import Rules
from tests.support.scaler_site import MODEL, START, Site

DAY_S = 86400.0
# Of a boot: POST ten minutes, the burn-in five.
BOOT_S = 900.0
STEP_S = 30.0


@dataclass(frozen=True)
class Arrival:
    """A job of the week."""

    at_s: float
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """What a site came to. Hours are of machines that are on; waits in seconds, cycles by machine."""

    on_hours: float
    waits: tuple[float, ...]
    cycles: tuple[int, ...]
    done: int
    cpu_s: float


def week(rng: random.Random, machines: int, load: float, days: float) -> list[Arrival]:
    """Jobs whose node-hours are `load` of the machines', more by day than by night, and few on two days of seven."""
    wanted_s, found, asked_s = load * machines * days * DAY_S, list[Arrival](), 0.0
    while asked_s < wanted_s:
        at_s = rng.uniform(0, days * DAY_S)
        day, hour = int(at_s // DAY_S) % 7, at_s % DAY_S / 3600
        busy = 0.5 + 0.5 * math.sin((hour - 9) / 24 * 2 * math.pi)
        if rng.random() > (busy if day < 5 else 0.3 * busy):
            continue
        nodes = min(machines // 2, 2 ** rng.choices(range(6), [30, 25, 20, 15, 7, 3])[0])
        seconds = min(12 * 3600.0, rng.lognormvariate(math.log(2400), 1.1))
        found.append(Arrival(at_s, nodes, seconds))
        asked_s += nodes * seconds
    return sorted(found, key=lambda one: one.at_s)


def run(arrivals: Sequence[Arrival], machines: int, rules: Rules, days: float, *, all_on: bool) -> Result:
    """The week on one site; with `all_on` nothing is ever switched."""
    site = Site(rules, boot_s=BOOT_S)
    for number in range(machines):
        rack = number // 8
        site.add(f"m{number:04}", on=all_on, rack=f"r{rack}", leaf=f"l{rack // 4}", feed="ab"[rack % 2])
    began_s, left = time.process_time(), list(reversed(arrivals))
    end = START + timedelta(days=days)
    wakes = 0.0
    while site.now < end or site.jobs:
        while left and START + timedelta(seconds=left[-1].at_s) <= site.now:
            arrival = left.pop()
            site.ask(f"t/{len(arrivals) - len(left)}", arrival.nodes, arrival.seconds)
        _round(site)
        wakes += 1
        site.advance(STEP_S if _busy(site) else _quiet_s(site, left))
        if site.now > end + timedelta(days=3):
            break
    waits = [(job.begun - job.arrived).total_seconds() for job in site.done if job.begun is not None]
    units = site.units.values()
    on_s = sum(min(unit.on_s, days * DAY_S) for unit in units)
    return Result(
        on_s / 3600, tuple(waits), tuple(unit.cycles for unit in units), len(site.done), time.process_time() - began_s
    )


def _round(site: Site) -> None:
    """Decide and do, until nothing is left to do at this moment."""
    for _ in range(20):
        plan = site.plan()
        if not plan.acts:
            return
        for act in plan.acts:
            site.carry_out(act)
        site.react()


def _busy(site: Site) -> bool:
    """Whether something is on its way."""
    on_the_way = (Stage.STARTING, Stage.STOPPING, Stage.UNSEEN)
    waiting = any(job.begun is None for job in site.jobs)
    return waiting or any(stage(one) in on_the_way for one in site.world().machines)


def _quiet_s(site: Site, left: Sequence[Arrival]) -> float:
    """Until the next arrival, end or idle machine's turn."""
    moments = [STEP_S * 10]
    if left:
        moments.append((START + timedelta(seconds=left[-1].at_s) - site.now).total_seconds())
    for job in site.jobs:
        if job.begun is not None:
            moments.append((job.begun + timedelta(seconds=job.seconds) - site.now).total_seconds())
    return max(1.0, min(moments))


def percentiles(values: Sequence[float]) -> str:
    """Half, nine in ten, 99 in 100 and the longest, in minutes."""
    if not values:
        return "none"
    cut = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return ", ".join(
        f"{label} {one / 60:.1f}"
        for label, one in zip(("p50", "p90", "p99", "max"), (cut[49], cut[89], cut[98], max(values)), strict=True)
    )


def report(machines: int, days: float, load: float, seed: int, rules: Rules) -> Iterator[str]:
    """The lines of the table."""
    arrivals = week(random.Random(seed), machines, load, days)
    least = sum(one.nodes * one.seconds for one in arrivals) / 3600
    yield f"{len(arrivals):,} jobs in {days:g} days on {machines} machines, load {load:.0%}, seed {seed}"
    yield f"least possible: {least:,.0f} node-hours"
    for title, all_on in (("scaled", False), ("all on", True)):
        used = rules if not all_on else replace(rules, idle_s=1e9)
        found = run(arrivals, machines, used, days, all_on=all_on)
        cycles = f"{sum(found.cycles) / machines:.1f} a machine, {max(found.cycles)} at most"
        yield (
            f"{title}: {found.on_hours:,.0f} node-hours, {found.on_hours / least:.2f} of the least; "
            f"waits in minutes: {percentiles(found.waits)}; power cycles: {cycles}; "
            f"{found.done} of {len(arrivals)} done; {found.cpu_s:.1f} CPU s"
        )


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--load", type=float, default=0.35)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--idle-s", type=float, default=1800.0)
    parser.add_argument("--spare", type=int, default=2)
    given = parser.parse_args()
    rules = Rules(idle_s=given.idle_s, spare={MODEL: given.spare})
    for line in report(given.machines, given.days, given.load, given.seed, rules):
        print(line, flush=True)


if __name__ == "__main__":
    main()
