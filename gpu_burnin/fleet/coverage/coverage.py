"""What the fleet's proofs are worth: their age by level, who was never idle, and who will be tested when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.schedule.pick import Overdue, Row, dues, epoch_s, overdue
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.fleet.coverage.simulate import Chance, Prospect, prospect
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import table, wrap
from gpu_burnin.system.quantities import count, duration

SCHEMA = "muster-coverage/v1"
_NAMED = 5


@dataclass(frozen=True)
class Ages:
    """The proofs of one level; a deeper one counts. `period_s` is infinite where the schedule never tests it."""

    level: str
    period_s: float
    young: int
    older: int
    never: int
    oldest: str = ""
    oldest_s: float = 0.0


@dataclass(frozen=True)
class Coverage:
    """All that `muster coverage` says. `rules_from` is where the budgets were read."""

    at: datetime
    rows: tuple[Row, ...]
    rules: TestRules
    rules_from: str
    ages: tuple[Ages, ...]
    overdue: tuple[Overdue, ...]
    prospect: Prospect | None


def coverage(
    rows: Sequence[Row], rules: TestRules, now: datetime, within_s: float, seed: int, rules_from: str
) -> Coverage:
    """The fleet's proofs now, and what the schedule will make of them."""
    ages = tuple(
        _ages(level, period, [_proof_age(row, level, now) for row in rows], rows)
        for level, period in zip(LEVEL_NAMES, rules.periods_s, strict=True)
    )
    late = tuple(overdue(rows, rules, now))
    return Coverage(now, tuple(rows), rules, rules_from, ages, late, prospect(rows, rules, now, within_s, seed))


def as_json(found: Coverage) -> dict[str, Any]:
    """The whole, each node with the ages of its proofs in seconds (null: none)."""
    return {
        "schema": SCHEMA,
        "at": rfc3339(found.at),
        "budgets": {**to_json(found.rules), "from": found.rules_from},
        "levels": to_json(found.ages, lambda _: None),
        "never_idle": [{**to_json(_plain(item)), "due_at": rfc3339(item.due_at)} for item in found.overdue],
        "prospect": to_json(found.prospect) if found.prospect else None,
        "nodes": [
            {
                "name": row.name,
                "state": str(row.state),
                "age_s": {level: _proof_age(row, level, found.at) for level in LEVEL_NAMES},
                "next": {due.level: _moment(due.at) for due in dues(row, found.rules)},
            }
            for row in found.rows
        ],
    }


def as_text(found: Coverage, width: int) -> str:
    """The same for people, without the single nodes."""
    lines = [f"{count(len(found.rows), 'node')}. Age of proof (a deeper level counts for those above it):", ""]
    lines += table(
        ["level", *(item.level for item in found.ages)],
        [
            [["tested every", *(_period(item.period_s) for item in found.ages)]],
            [["within", *(str(item.young) for item in found.ages)]],
            [["older", *(str(item.older) for item in found.ages)]],
            [["never", *(str(item.never) for item in found.ages)]],
            [["oldest", *(_oldest(item) for item in found.ages)]],
        ],
        width,
    )
    if found.overdue:
        lines += ["", f"Never idle since their test was due: {count(len(found.overdue), 'node')}."]
        for item in found.overdue[:_NAMED]:
            lines += wrap(f"{item.name}: {item.why}", width, "  ", "    ")
        if len(found.overdue) > _NAMED:
            lines.append(f"  and {len(found.overdue) - _NAMED} more (--json names all)")
    lines.append("")
    for paragraph in _prospect_text(found):
        lines += wrap(paragraph, width)
    return "\n".join(lines)


def _prospect_text(found: Coverage) -> list[str]:
    rules, seen = found.rules, found.prospect
    budget = (
        f"Budgets ({found.rules_from}): {rules.places(len(found.rows))} of {count(len(found.rows), 'node')} at a time, "
        f"{', '.join(rules.hours) + ' UTC' if rules.hours else 'at all hours'}, "
        f"{rules.random_share:.0%} of the tests at random."
    )
    if seen is None:
        return [budget, "Nothing can be said of the time to come: no node that is ready has an observed use."]
    any_level, standard, extended = (_chance(seen.chances[level]) for level in LEVEL_NAMES)
    chances = [
        f"Within {duration(seen.within_s)} a ready node is tested with probability {any_level}, "
        f"at level standard or deeper {standard}, extended {extended}."
    ]
    least = ", ".join(f"{name} {chance:.0%}" for name, chance in seen.least)
    basis = (
        f"By {seen.runs} simulations (seed {seen.seed}; in brackets their lowest and highest fleet) of "
        f"{count(seen.nodes, 'node')} that "
        f"{'was' if seen.nodes == 1 else 'were'} idle {seen.idle_share:.0%} of the observed time "
        f"(half of them were observed for {duration(seen.observed_s)} or longer)."
    )
    return [
        budget,
        "",
        *chances,
        f"Least likely: {least}.",
        "",
        basis,
        "Not observed: " + "; ".join(_unknown(seen)) + ".",
    ]


def _unknown(seen: Prospect) -> list[str]:
    if seen.spell is None:
        lengths = "how long nodes are idle or busy at a time (no begin of a spell was seen): each was left as it is now"
    else:
        lengths = (
            "how long nodes are idle or busy at a time, but for the present spells: "
            f"{_article(seen.spell.state)} spell was taken to last {duration(seen.spell.mean_s)} on average, "
            f"exponentially, the same on all nodes (from {count(seen.spell.begun, 'begin')} seen on "
            f"{count(seen.spell.nodes, 'node')})"
        )
    found = [lengths, "that use changes with the hour or the week, and nodes that fail or are held meanwhile"]
    if seen.unseen:
        found.append(f"the use of {count(seen.unseen, 'ready node')}, which {_are(seen.unseen)} not in it")
    if seen.out:
        found.append(f"what becomes of {count(seen.out, 'node')} that {_are(seen.out)} not ready")
    return found


def _ages(level: str, period_s: float, ages: Sequence[float | None], rows: Sequence[Row]) -> Ages:
    known = [(age, row.name) for age, row in zip(ages, rows, strict=True) if age is not None]
    young = sum(age <= period_s for age, _ in known)
    oldest_s, oldest = max(known, default=(0.0, ""))
    return Ages(level, period_s, young, len(known) - young, len(rows) - len(known), oldest, oldest_s)


def _proof_age(row: Row, level: str, now: datetime) -> float | None:
    times = [epoch_s(row.proofs[deeper]) for deeper in LEVEL_NAMES[LEVEL_NAMES.index(level) :] if deeper in row.proofs]
    newest = max(times, default=-math.inf)
    return round(now.timestamp() - newest, 3) if newest > -math.inf else None


def _plain(item: Overdue) -> Mapping[str, str]:
    return {"name": item.name, "level": item.level, "why": item.why}


def _moment(at_s: float) -> str | None:
    return rfc3339(datetime.fromtimestamp(at_s, UTC)) if math.isfinite(at_s) else None


def _period(period_s: float) -> str:
    return duration(period_s) if math.isfinite(period_s) else "never"


def _oldest(item: Ages) -> str:
    return f"{duration(item.oldest_s)} ({item.oldest})" if item.oldest else "-"


def _chance(chance: Chance) -> str:
    return f"{chance.mean:.1%} [{chance.low:.1%}, {chance.high:.1%}]"


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
