"""Which idle nodes are tested with which now: those that somebody waits for, suspects, then whose turn it is. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, islice

from gpu_burnin.admission.fabric.proofs import is_named, is_proven, is_suspect
from gpu_burnin.admission.schedule.pick import epoch_s
from gpu_burnin.api.fabric_proof import FabricProof

# Fewer are a pair; of more, one bad node hides too many others.
LEAST_GROUP, MOST_GROUP = 3, 32
# So many that are free are compared for one partner, at random: of a leaf that is all there are.
_MOST_COMPARED = 256


@dataclass(frozen=True, slots=True)
class Row:
    """A node that could be tested now: it is there, idle, has a NIC, and nothing else is asked of it.

    `proof` is of this boot, None for none. `wanted` is why somebody waits for its test, with its name, "" for nobody.
    `jobs` are about to start on it.
    """

    name: str
    leaf: str
    proof: FabricProof | None = None
    wanted: str = ""
    jobs: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether jobs are about to start on it that wait for no test of it: then it only helps others of these."""
        return bool(self.jobs) and not self.wanted

    def shares_job(self, other: Row) -> bool:
        """Whether a job is about to start on both."""
        return not set(self.jobs).isdisjoint(other.jobs)


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes to test with each other, two or a whole leaf, and why."""

    members: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn it is at this time. `every_s` 0: only suspects and those that are waited for.

    Two suspects are tested with each other after `again_s`, where nobody else can be. `lone`: at most one node of the
    fleet is no suspect, so that no two can be proven for them.
    """

    every_s: float
    now_s: float
    again_s: float = 600.0
    lone: bool = False

    def why(self, row: Row) -> str:
        """Why it is tested now, with its name, since it is one of two; "" where it is not."""
        if row.wanted:
            return row.wanted
        if is_suspect(row.proof):
            return f"{row.name} failed with another node, and nothing explains that yet"
        if not self.every_s or row.kept:
            return ""
        if not is_proven(row.proof):
            return f"{row.name} has not passed two tests in this boot"
        return f"it is the turn of {row.name}" if self.age_s(row) >= self.every_s else ""

    def age_s(self, row: Row) -> float:
        """How long ago it was tested."""
        return self.now_s - epoch_s(row.proof.tested_at) if row.proof is not None else float("inf")


def waited_for(rows: Iterable[Row]) -> list[Row]:
    """Those that somebody waits for, and what jobs that wait hold idle beside them: none of these takes work now."""
    known = list(rows)
    jobs = {job for row in known if row.wanted for job in row.jobs}
    return [row for row in known if row.wanted or not (jobs.isdisjoint(row.jobs) or is_suspect(row.proof))]


def pick(
    rows: Sequence[Row], places: int, turns: Turns, rng: random.Random, due: Mapping[str, int] | None = None
) -> list[Choice]:
    """The tests to begin now, in at most `places` nodes.

    `due` are leaves whose turn it is as a whole, and how many nodes each has: such a one is tested where all of them
    are free, proven, and not to be tested as pairs.
    """
    if places < 2 or not (due or any(turns.why(row) for row in rows)):
        return []
    shuffled = sorted((row for row in rows if not is_named(row.proof)), key=lambda row: row.name)
    rng.shuffle(shuffled)
    free = _Free(shuffled, turns)
    chosen = _pairs(shuffled, free, places, turns)
    left = places - 2 * len(chosen)
    for leaf, size in (due or {}).items():
        members = sorted(row.name for row in free.pool(_Kind.PROVEN, leaf) if not row.kept)
        if LEAST_GROUP <= size == len(members) <= min(left, MOST_GROUP):
            chosen.append(Choice(tuple(members), f"all nodes of {leaf} are idle"))
            left -= size
    return chosen


class _Kind(Enum):
    PROVEN = auto()
    UNPROVEN = auto()
    SUSPECT = auto()

    @classmethod
    def of(cls, row: Row) -> _Kind:
        if is_suspect(row.proof):
            return cls.SUSPECT
        return cls.PROVEN if is_proven(row.proof) else cls.UNPROVEN


class _Free:
    """Who is in no test yet, by kind and leaf: to look through a large fleet for each would take seconds."""

    def __init__(self, rows: Iterable[Row], turns: Turns) -> None:
        self._rows: dict[str, tuple[_Kind, float]] = {}
        self._pools: dict[tuple[_Kind, str | None], dict[str, Row]] = {}
        for row in rows:
            kind = _Kind.of(row)
            self._rows[row.name] = kind, turns.age_s(row)
            for leaf in (row.leaf, None):
                self._pools.setdefault((kind, leaf), {})[row.name] = row

    def __contains__(self, row: Row) -> bool:
        return row.name in self._rows

    def age_s(self, row: Row) -> float:
        return self._rows[row.name][1]

    def pool(self, kind: _Kind, leaf: str | None = None) -> Iterable[Row]:
        """Those of a leaf, or of the fleet."""
        return self._pools.get((kind, leaf), {}).values()

    def count(self, kind: _Kind) -> int:
        return len(self._pools.get((kind, None), ()))

    def take(self, row: Row) -> None:
        kind, _ = self._rows.pop(row.name)
        for leaf in (row.leaf, None):
            del self._pools[kind, leaf][row.name]


def _pairs(shuffled: Sequence[Row], free: _Free, places: int, turns: Turns) -> list[Choice]:
    """The pairs; their members are taken out of `free`."""
    chosen: list[Choice] = []
    proven, unproven = free.count(_Kind.PROVEN), free.count(_Kind.UNPROVEN)
    # A sort keeps the order of equals, so those of one kind come at random.
    urgency = {row.name: (not row.wanted, not is_suspect(row.proof), -free.age_s(row)) for row in shuffled}
    for row in sorted(shuffled, key=lambda one: urgency[one.name]):
        if 2 * (len(chosen) + 1) > places:
            break
        why = turns.why(row) if row in free else ""
        if not why:
            continue
        age_s = free.age_s(row)
        # Who has no partner now is in no test at all.
        free.take(row)
        if not is_suspect(row.proof):
            partner = _partner(row, free)
        elif proven:
            partner = _proven(row, free)
        elif unproven > 1:
            # No good node is to fail with it that could be proven before.
            if two := _two_unproven(row, free):
                chosen.append(Choice(two, f"a suspect, {row.name}, needs partners that are proven"))
            continue
        else:
            partner = _suspect(row, free, turns) if age_s >= turns.again_s else None
            if partner is None and turns.lone:
                partner = _best(row, free, free.pool(_Kind.UNPROVEN))
        if partner is not None:
            free.take(partner)
            chosen.append(Choice((row.name, partner.name), why))
    return chosen


def _partner(row: Row, free: _Free) -> Row | None:
    """One of its leaf; where somebody waits for its test and there is none, any one."""
    near = chain(free.pool(_Kind.PROVEN, row.leaf), free.pool(_Kind.UNPROVEN, row.leaf))
    if (found := _best(row, free, near)) is not None or not row.wanted:
        return found
    return _best(row, free, free.pool(_Kind.PROVEN)) or _best(row, free, free.pool(_Kind.UNPROVEN))


def _proven(suspect: Row, free: _Free) -> Row | None:
    """A proven one of its leaf if there is one, else the fault may be what is between leaves."""
    near = _best(suspect, free, free.pool(_Kind.PROVEN, suspect.leaf))
    return near or _best(suspect, free, free.pool(_Kind.PROVEN))


def _two_unproven(suspect: Row, free: _Free) -> tuple[str, str] | None:
    """Two that pass with each other once more, and may then be partners of suspects."""
    for leaf in (suspect.leaf, None):
        able = [row for row in islice(free.pool(_Kind.UNPROVEN, leaf), _MOST_COMPARED) if not row.kept]
        if len(able) > 1:
            first = max(able, key=lambda row: (_passes(row), free.age_s(row)))
            known, near = _partners(first), first.leaf
            others = [row for row in able if row is not first]
            second = max(others, key=lambda row: (row.leaf == near, _passes(row), row.name not in known))
            free.take(first)
            free.take(second)
            return first.name, second.name
    return None


def _passes(row: Row) -> int:
    return row.proof.passes if row.proof is not None else 0


def _suspect(row: Row, free: _Free, turns: Turns) -> Row | None:
    """Another suspect, tested with nobody lately: one that it has not met, else not the one that it met last."""
    found: Row | None = None
    for leaf in (row.leaf, None):
        for other in islice(free.pool(_Kind.SUSPECT, leaf), _MOST_COMPARED):
            last = row.name in _partners(other)[-1:] or other.name in _partners(row)[-1:]
            if last or free.age_s(other) < turns.again_s or not _may_meet(row, other):
                continue
            if other.name not in _partners(row) and row.name not in _partners(other):
                return other
            found = found or other
    return found


def _best(row: Row, free: _Free, others: Iterable[Row]) -> Row | None:
    known, needs_proven = _partners(row), bool(row.wanted) or is_suspect(row.proof)

    def rank(other: Row) -> tuple[bool, bool, bool, bool, int, float]:
        fit = is_proven(other.proof)
        return (
            # Its job holds them idle: others could take work meanwhile.
            bool(row.wanted and row.jobs) and not row.shares_job(other),
            other.name in known,
            fit is not needs_proven,
            # Two that are waited for are served by one test.
            bool(row.wanted and not other.wanted),
            # One with which others have failed may be the bad one of them.
            len(other.proof.failed_with) if other.proof is not None else 0,
            -free.age_s(other),
        )

    return min((other for other in islice(others, _MOST_COMPARED) if _may_meet(row, other)), key=rank, default=None)


def _may_meet(row: Row, other: Row) -> bool:
    """A job's node is in no test but with one of that job: a suspect, or one whose test the job waits for."""
    return not other.kept or ((is_suspect(row.proof) or bool(row.wanted)) and row.shares_job(other))


def _partners(row: Row) -> tuple[str, ...]:
    return row.proof.partners if row.proof is not None else ()
