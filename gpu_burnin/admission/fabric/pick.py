"""Which idle nodes are tested with which now: those that somebody waits for, suspects, then whose turn it is. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.admission.fabric.proofs import is_proven, is_suspect
from gpu_burnin.admission.schedule.pick import epoch_s
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof

# Fewer are a pair; of more, one bad node hides too many others.
LEAST_GROUP, MOST_GROUP = 3, 32


@dataclass(frozen=True, slots=True)
class Row:
    """A node that could be tested now: it is there, idle, has a NIC, and nothing else is asked of it.

    `proof` is of this boot, None for none. `wanted` is why somebody waits for its test, "" for nobody.
    """

    name: str
    leaf: str
    proof: FabricProof | None = None
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes to test with each other, two or a whole leaf, and why."""

    members: tuple[str, ...]
    why: str


def pick(
    rows: Sequence[Row],
    places: int,
    every_s: float,
    now_s: float,
    rng: random.Random,
    due: Mapping[str, int] | None = None,
) -> list[Choice]:
    """The tests to begin now, in at most `places` nodes. `every_s` 0: only suspects and those that are waited for.

    `due` are leaves whose turn it is as a whole, and how many nodes each has: such a one is tested where all of them
    are free, proven, and not to be tested as pairs.
    """
    free = {row.name: row for row in rows}
    chosen = _pairs(rows, free, places, every_s, now_s, rng)
    left = places - 2 * len(chosen)
    for leaf, size in (due or {}).items():
        members = [row for row in free.values() if row.leaf == leaf and is_proven(row.proof)]
        if LEAST_GROUP <= size == len(members) <= min(left, MOST_GROUP):
            chosen.append(Choice(tuple(row.name for row in members), f"all nodes of {leaf} are idle"))
            left -= size
    return chosen


def _pairs(
    rows: Sequence[Row], free: dict[str, Row], places: int, every_s: float, now_s: float, rng: random.Random
) -> list[Choice]:
    """The pairs; their members are taken out of `free`."""
    chosen: list[Choice] = []
    leaves: dict[str, dict[str, Row]] = {}
    for row in rows:
        leaves.setdefault(row.leaf, {})[row.name] = row
    shuffled = sorted(rows, key=lambda row: row.name)
    rng.shuffle(shuffled)
    # A sort keeps the order of equals, so those of one kind come at random.
    for row in sorted(shuffled, key=lambda one: _urgency(one, now_s)):
        if 2 * (len(chosen) + 1) > places:
            break
        why = _why(row, every_s, now_s)
        if row.name not in free or not why:
            continue
        # Who has no partner now is in no test at all.
        del free[row.name], leaves[row.leaf][row.name]
        # Most have one in their leaf: to look through the fleet for each would take seconds where leaves are small.
        near = _partner(row, leaves[row.leaf].values(), now_s)
        fit = near is not None and (is_proven(near.proof) or not is_suspect(row.proof))
        far = not fit and (row.wanted or is_suspect(row.proof))
        partner = _partner(row, free.values(), now_s) if far else near
        if partner is None:
            continue
        del free[partner.name], leaves[partner.leaf][partner.name]
        chosen.append(Choice((row.name, partner.name), why))
    return chosen


def _why(row: Row, every_s: float, now_s: float) -> str:
    """Why it is tested now, "" where it is not."""
    if row.wanted:
        return row.wanted
    if is_suspect(row.proof):
        return "it failed with another node, and nothing explains that yet"
    if row.proof is not None and row.proof.outcome is FabricOutcome.NAMED:
        return ""
    if not every_s:
        return ""
    age_s = _age_s(row, now_s)
    if not is_proven(row.proof) or age_s >= every_s:
        return "it has not passed two tests in this boot" if not is_proven(row.proof) else "it is its turn"
    return ""


def _urgency(row: Row, now_s: float) -> tuple[bool, bool, float]:
    return not row.wanted, not is_suspect(row.proof), -_age_s(row, now_s)


def _age_s(row: Row, now_s: float) -> float:
    return now_s - epoch_s(row.proof.tested_at) if row.proof is not None else float("inf")


def _partner(row: Row, free: Iterable[Row], now_s: float) -> Row | None:
    """The best of those that are free: never two suspects, and never one that is named."""
    known = row.proof.partners if row.proof is not None else ()
    suspect = is_suspect(row.proof)

    def rank(other: Row) -> tuple[bool, bool, bool, bool, bool, float]:
        # A suspect needs a proven partner, in its leaf if there is one, else the fault may be what is between leaves.
        fit = is_proven(other.proof)
        return (
            not fit if suspect else False,
            other.leaf != row.leaf,
            other.name in known,
            not fit if row.wanted else fit,
            # Two that are waited for are served by one test.
            bool(row.wanted and not other.wanted),
            -_age_s(other, now_s),
        )

    able = [
        other
        for other in free
        if not (other.proof is not None and other.proof.outcome is FabricOutcome.NAMED)
        and not is_suspect(other.proof)
        and (other.leaf == row.leaf or suspect or row.wanted)
    ]
    return min(able, key=rank, default=None)
