"""Which idle nodes are tested now: the oldest proof first, with a random share, within what the rules allow."""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, TypeVar

from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.record import NodeAdmission, State, Use
from gpu_burnin.system.quantities import duration

_T = TypeVar("_T")
_NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class Row:
    """What the schedule knows of one GPU node. `idle`: no pod on it has GPUs, and it is not in maintenance.

    `proofs` are the finish times of the newest PASS of each level, `asked_at` when the schedule last chose it,
    `repaired_at` when it last came back from repair. `running`: a test of it is under way, whoever asked for it.
    """

    name: str
    state: State
    idle: bool
    proofs: Mapping[str, str]
    use: Use | None = None
    asked_at: str = ""
    repaired_at: str = ""
    running: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A node to test now."""

    name: str
    level: str
    why: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """A node whose proof is older than its period, and that was not idle since: nobody could test it."""

    name: str
    level: str
    due_at: datetime
    why: str


class Due(NamedTuple):
    """The test that a node should have: `at` and `since` (its last proof, or its first sight) are epoch seconds.

    `owed` since a repair, before its period is over.
    """

    level: str
    at: float
    since: float
    period_s: float
    owed: bool = False

    def age(self, now_s: float) -> float:
        """How old the proof is, in periods, so that levels compare."""
        return (now_s - self.since) / self.period_s


def row_of(admission: NodeAdmission, *, idle: bool, asked_at: str = "", chosen: bool = False) -> Row:
    """A row from the ledger. `chosen`: the schedule has chosen it, and its test has not begun."""
    status = admission.status
    repairs = [change.at for change in status.transitions if change.before == State.REPAIRING]
    return Row(
        admission.name,
        status.state,
        idle,
        status.proofs,
        status.use,
        asked_at,
        max(repairs, default=""),
        chosen or status.request is not None,
    )


def pick(rows: Sequence[Row], rules: TestRules, now: datetime, rng: random.Random) -> list[Choice]:
    """The nodes to begin a test on now. `rows` are all GPU nodes of the fleet: shares are of them."""
    free = rules.places(len(rows)) - sum(row.running for row in rows)
    if free <= 0 or not rules.open_at(now):
        return []
    now_s = now.timestamp()
    waiting = []
    for row in rows:
        if row.state is not State.READY or not row.idle or row.running:
            continue
        if row.asked_at and now_s - epoch_s(row.asked_at) < rules.ask_again_s:
            continue
        if due := due_of(row, rules, now_s):
            # By its oldest proof, whichever is renewed: a deep test does not take its node's turn for the others.
            waiting.append((-max(one.age(now_s) for one in due), row.name, due[0]))
    chosen = choose(sorted(waiting, key=lambda item: item[:2]), rules.random_share, rng)
    return [Choice(name, due.level, _why(due, now_s, drawn)) for (_, name, due), drawn in islice(chosen, free)]


def overdue(rows: Iterable[Row], rules: TestRules, now: datetime) -> list[Overdue]:
    """The nodes that were never idle since their test was due, the longest waiting first."""
    now_s = now.timestamp()
    found = []
    for row in rows:
        if row.idle or row.running or row.state is not State.READY or row.use is None or not row.use.busy:
            continue
        late = [due for due in dues(row, rules, early=False) if epoch_s(row.use.since) <= due.at <= now_s]
        if late:
            first = min(late, key=lambda due: due.at)
            why = f"busy since {row.use.since}; its {first.level} test is due for {duration(now_s - first.at)}"
            found.append(Overdue(row.name, first.level, datetime.fromtimestamp(first.at, UTC), why))
    return sorted(found, key=lambda item: (item.due_at, item.name))


def choose(oldest_first: Sequence[_T], random_share: float, rng: random.Random) -> Iterator[tuple[_T, bool]]:
    """What waits in the order in which it gets the free places, and whether it was drawn."""
    queue = list(oldest_first)
    while queue:
        drawn = rng.random() < random_share
        yield queue.pop(rng.randrange(len(queue)) if drawn else 0), drawn


def due_of(row: Row, rules: TestRules, now_s: float) -> list[Due]:
    """The tests that are due, the one to do first: the deepest, and what is owed since a repair after all others.

    A whole fleet that was repaired, as for another driver, waits for days for its extended tests: meanwhile each node's
    other proofs are renewed.
    """
    return [due for due in dues(row, rules) if due.at <= now_s]


def dues(row: Row, rules: TestRules, *, early: bool = True) -> Iterator[Due]:
    """The next test of each level, the deepest first; then what is owed since a repair, if that is earlier.

    A level that the node never had comes within one period of its first sight. `early`: a random share comes before
    its period is over, by the node's name and its proof, so that every admitter makes the same timetable and none has
    to be kept.
    """
    proof, owed = _NEVER, None
    for level, period in _deepest_first(rules):
        if text := row.proofs.get(level):
            proof = max(proof, epoch_s(text))
        if period == math.inf:
            continue
        known = proof > _NEVER
        since = proof if known or row.use is None else epoch_s(row.use.observed_since)
        at = since + period * (_moment(row.name, level, since, rules.random_share if known else 1.0) if early else 1.0)
        yield Due(level, at, since, period)
        if level == LEVEL_NAMES[-1] and row.repaired_at and since < (repaired := epoch_s(row.repaired_at)) < at:
            owed = Due(level, repaired, since, period, owed=True)
    if owed is not None:
        yield owed


@functools.lru_cache(maxsize=16)
def _deepest_first(rules: TestRules) -> tuple[tuple[str, float], ...]:
    return tuple(reversed(list(zip(LEVEL_NAMES, rules.periods_s, strict=True))))


# The same texts come with each pass over the fleet.
@functools.lru_cache(maxsize=2**17)
def epoch_s(text: str) -> float:
    """Seconds of an RFC 3339 time; long ago for one that cannot be read, which has its node tested."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return _NEVER


def _moment(name: str, level: str, since: float, share: float) -> float:
    """When in its period the test comes: 1 at its end; a share of all tests at any moment of it."""
    drawn = zlib.crc32(f"{name} {level} {since}".encode()) / 2**32
    return drawn / share if drawn < share else 1.0


def _why(due: Due, now_s: float, drawn: bool) -> str:
    proof = f"its last such proof is {duration(now_s - due.since)} old" if due.since > _NEVER else "it has none"
    return f"{due.level} test {'drawn at random' if drawn else 'after repair' if due.owed else 'by age'}: {proof}"
