"""With what probability a node is tested within a time: the schedule's own rules on a fleet that is used as observed.

A node's pods come and go as a Markov chain of two states. Of each node the observed share of idle time is known, and
the length of its present spell. The ends of spells are not in the ledger, so their mean is estimated over the fleet:
the age of a spell that is seen at any moment is distributed as its length is, where lengths are exponential (renewal
theory; Cox, Renewal Theory, 1962, ch. 5). Each run of the simulation draws both anew from what the observation leaves
open, so that their uncertainty is in the result.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.admission.schedule.pick import Row, choose, dues, epoch_s
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.record import State, Use

# The goals of the levels' times (docs/reference/levels.md), with what comes before and after a run.
TEST_S: Mapping[str, float] = {"quick": 90.0, "standard": 330.0, "extended": 7260.0}
_RUNS, _STEPS = 20, 1000
_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Chance:
    """The probability that a node is tested: mean over nodes and runs, and the runs' lowest and highest mean."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Spell:
    """The mean length of a spell of use in seconds, from `ended` spells whose begin was seen."""

    state: str
    mean_s: float
    begun: int
    nodes: int


@dataclass(frozen=True)
class Prospect:
    """The result. `chances` by level: tested at that level or a deeper one; "any" at whatever level.

    `nodes` are in it; of `unseen` no use was observed, `out` are not ready. `spell` None: of no spell the begin was
    seen, and each node was left as it is now. `least` are the nodes with the lowest probability at any level.
    """

    within_s: float
    runs: int
    seed: int
    nodes: int
    unseen: int
    out: int
    idle_share: float
    observed_s: float
    spell: Spell | None
    chances: Mapping[str, Chance]
    least: tuple[tuple[str, float], ...]


def prospect(
    rows: Sequence[Row], rules: TestRules, now: datetime, within_s: float, seed: int, runs: int = _RUNS
) -> Prospect | None:
    """Simulate `runs` times; None where no node that is ready has an observed use."""
    ready = [row for row in rows if row.state is State.READY]
    seen = [row for row in ready if row.use is not None and _span_s(row.use, now) > 0]
    if not seen:
        return None
    fleet = _Fleet(seen, now)
    spell = fleet.spell()
    numbers = np.random.default_rng(seed)
    tested = np.zeros((runs, len(LEVEL_NAMES), len(seen)), dtype=bool)
    for run in range(runs):
        tested[run] = _run(fleet, spell, rules, len(rows), now, within_s, numbers, random.Random(f"{seed} {run}"))
    by_node = tested[:, 0].mean(axis=0)
    order = np.argsort(by_node, kind="stable")[:5]
    return Prospect(
        within_s,
        runs,
        seed,
        len(seen),
        len(ready) - len(seen),
        len(rows) - len(ready),
        float(fleet.idle_s.sum() / fleet.span_s.sum()),
        float(np.median(fleet.span_s)),
        spell,
        {level: _chance(tested[:, index]) for index, level in enumerate(LEVEL_NAMES)},
        tuple((seen[index].name, float(by_node[index])) for index in order),
    )


class _Fleet:
    """What was observed, as arrays over the nodes."""

    def __init__(self, rows: Sequence[Row], now: datetime) -> None:
        uses = [row.use for row in rows if row.use is not None]
        self.rows, self.now_s = rows, now.timestamp()
        self.span_s: _Floats = np.array([_span_s(use, now) for use in uses])
        self.busy: _Bools = np.array([use.busy for use in uses])
        # The ledger adds a spell when it ends: what is missing is the present one.
        known = np.array([[use.idle_s, use.busy_s] for use in uses]).clip(min=0)
        present = (self.span_s - known.sum(axis=1)).clip(min=0)
        self.idle_s: _Floats = np.minimum(known[:, 0] + np.where(self.busy, 0, present), self.span_s)
        self.age_s: _Floats = np.array([self.now_s - epoch_s(use.since) for use in uses]).clip(min=0)
        # A spell that was there at first sight may have begun long before.
        self.begun: _Bools = np.array([epoch_s(use.since) > epoch_s(use.observed_since) + 1 for use in uses])

    def spell(self) -> Spell | None:
        """The mean length of the spells of that state of which more begins were seen."""
        found = []
        for state, mask in (("busy", self.busy), ("idle", ~self.busy)):
            begun = int(self.begun[mask].sum())
            if begun:
                found.append(Spell(state, float(self.age_s[mask].sum() / begun), begun, int(mask.sum())))
        return max(found, key=lambda spell: spell.begun, default=None)


def _run(
    fleet: _Fleet,
    spell: Spell | None,
    rules: TestRules,
    fleet_size: int,
    now: datetime,
    within_s: float,
    numbers: np.random.Generator,
    draws: random.Random,
) -> _Bools:
    """One run: which nodes were tested, at each level or a deeper one."""
    size, end_s = len(fleet.rows), fleet.now_s + within_s
    step_s = within_s / _STEPS
    idle_share, mixing = _chain(fleet, spell, step_s, numbers)
    since, due_at, owed = _timetable(fleet, rules)
    periods = np.array(rules.periods_s)[:, None]
    idle = ~fleet.busy
    tested = np.zeros((len(LEVEL_NAMES), size), dtype=bool)
    until, level_of = np.full(size, math.inf), np.zeros(size, dtype=int)
    running = np.zeros(size, dtype=bool)
    free_at = [fleet.now_s] * rules.places(fleet_size)
    for step in range(_STEPS + 1):
        at = fleet.now_s + step * step_s
        for index in np.flatnonzero(running & (until <= at)):
            depth = level_of[index] + 1
            tested[:depth, index] = True
            since[:depth, index] = until[index]
            moments = numbers.random(depth)
            early = np.where(moments < rules.random_share, moments / (rules.random_share or 1), 1.0)
            due_at[:depth, index] = until[index] + periods[:depth, 0] * early
            owed[index] &= depth < len(LEVEL_NAMES)
            running[index] = False
        if at >= end_s:
            break
        if free_at and free_at[0] < at + step_s and rules.open_at(now + timedelta(seconds=step * step_s)):
            due = due_at <= at
            waiting = np.flatnonzero(idle & ~running & (due.any(axis=0) | owed))
            # The deepest; where none is due, what is owed since a repair, which is the deepest of all.
            deepest = len(LEVEL_NAMES) - 1 - due[::-1, waiting].argmax(axis=0)
            due[-1] |= owed
            ages = np.divide(at - since, periods, out=np.full(since.shape, -math.inf), where=due)[:, waiting]
            order = np.argsort(-ages.max(axis=0), kind="stable").tolist()
            # A place takes several short tests in one step.
            for place, _ in choose(order, rules.random_share, draws):
                begin = max(heapq.heappop(free_at), at)
                if begin >= at + step_s:
                    heapq.heappush(free_at, begin)
                    break
                index, level = waiting[place], deepest[place]
                running[index], level_of[index], until[index] = True, level, begin + TEST_S[LEVEL_NAMES[level]]
                heapq.heappush(free_at, until[index])
        # Exact at the steps; idle moments between two of them are not seen, which understates.
        likely = idle_share + (idle - idle_share) * mixing
        idle = np.where(running, idle, numbers.random(size) < likely)
    return tested


def _chain(fleet: _Fleet, spell: Spell | None, step_s: float, numbers: np.random.Generator) -> tuple[_Floats, _Floats]:
    """Each node's share of idle time, and how much of its state is left after a step (1: all of it)."""
    size = len(fleet.rows)
    if spell is None:
        return np.where(fleet.busy, 0.0, 1.0), np.ones(size)
    mean_s = spell.mean_s * spell.begun / numbers.gamma(spell.begun)
    observed = (fleet.idle_s / fleet.span_s).clip(0, 1)
    # As many independent looks at a node as it had spells; a node that was never seen idle may be so one day.
    looks = fleet.span_s / mean_s
    share = numbers.beta(observed * looks + 0.5, (1 - observed) * looks + 0.5).clip(1e-6, 1 - 1e-6)
    other = share / (1 - share) if spell.state == "busy" else (1 - share) / share
    rate = 1 / mean_s + 1 / (mean_s * other)
    return share, np.exp(-rate * step_s)


def _timetable(fleet: _Fleet, rules: TestRules) -> tuple[_Floats, _Floats, _Bools]:
    """The last proof and the next test of each level and node, in epoch seconds; who owes one since a repair."""
    since = np.full((len(LEVEL_NAMES), len(fleet.rows)), -math.inf)
    due_at, owed = np.full(since.shape, math.inf), np.zeros(len(fleet.rows), dtype=bool)
    for index, row in enumerate(fleet.rows):
        for due in dues(row, rules):
            if due.owed:
                owed[index] = True
                continue
            level = LEVEL_NAMES.index(due.level)
            since[level, index], due_at[level, index] = due.since, due.at
    return since, due_at, owed


def _chance(tested: _Bools) -> Chance:
    means = tested.mean(axis=1)
    return Chance(float(means.mean()), float(means.min()), float(means.max()))


def _span_s(use: Use, now: datetime) -> float:
    return now.timestamp() - epoch_s(use.observed_since)
