"""Whose proof ends before the timetable has renewed it."""

from __future__ import annotations

import functools

from gpu_burnin.admission.schedule.pick import epoch_s
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.evidence import shortest_ttl_s
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.record import Proof

_MOST_S = 86400.0


def ends_soon(expires_at: str, asked: Proof, rules: TestRules, now_s: float) -> bool:
    """Whether a proof has ended, or is so near its end that its test is late."""
    return bool(expires_at) and epoch_s(expires_at) - now_s < late_s(rules, asked)


@functools.lru_cache(maxsize=64)
def late_s(rules: TestRules, asked: Proof) -> float:
    """So many seconds before its end a test is late: half of what is left when the last one is due, at most a day.

    The other half is for nodes that wait for a place: of a new fleet nearly all are due in the same hour. A day too
    where the timetable leaves nothing, so that proofs end however well it is kept.
    """
    least = LEVEL_NAMES.index(asked.level) if asked.level in LEVEL_NAMES else 0
    left_s = shortest_ttl_s(asked.max_age_s) - min(rules.periods_s[least:])
    return min(left_s / 2, _MOST_S) if left_s > 0 else _MOST_S
