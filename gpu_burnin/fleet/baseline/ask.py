"""Which hosts that lie outside are asked for a test, and why the others are not. The asking is cluster/asks.py's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.words import active
from gpu_burnin.api.record import NodeAdmission, State
from gpu_burnin.fleet.baseline import MOST_ASKED
from gpu_burnin.fleet.baseline.comparison import DRIFTS, SLOWER, Outside
from gpu_burnin.fleet.baseline.text import sentence

_MOST_WHY = 300


@dataclass(frozen=True)
class RetestAsk:
    """A node that lies outside: `why` is what its ask says, `not_asked` why it gets none, "" where it may."""

    host: str
    node: str
    why: str
    not_asked: str = ""


def asks_of(
    outside: Mapping[str, tuple[Outside, ...]],
    admissions: Iterable[NodeAdmission],
    now: datetime,
    most: int = MOST_ASKED,
) -> list[RetestAsk]:
    """What is asked of each host, those first that lost most. Pure.

    `most` holds for all asks of this kind that wait for their test, those of earlier calls too. A node that has been
    tested for it since is not asked again: a second test would say the same.
    """
    known = {admission.name: admission for admission in admissions}
    free = most - sum(_ours(one) and _waits(one, now) for one in known.values())
    found = []
    for host, ones in outside.items():
        first = ones[0]
        why = f"{first.code}: {sentence(first)}"
        if len(ones) > 1:
            why += f"; and {len(ones) - 1} more"
        not_asked = _not_asked(known.get(first.node), first, now)
        if not not_asked:
            not_asked = "" if free > 0 else f"{most} such tests at a time (--most)"
            free -= 1
        found.append(RetestAsk(host, first.node, why[:_MOST_WHY], not_asked))
    return found


def _ours(admission: NodeAdmission) -> bool:
    """Whether somebody asked for a test because it lies outside."""
    return admission.spec.retest is not None and admission.spec.retest.why.startswith((SLOWER, DRIFTS))


def _done(admission: NodeAdmission) -> bool:
    return admission.spec.retest is not None and admission.status.retested == admission.spec.retest.since


def _waits(admission: NodeAdmission, now: datetime) -> bool:
    """Whether a test is asked for that is still to come: an ask that has ended brings none."""
    return active(admission.spec.retest, now) is not None and not _done(admission)


def _not_asked(admission: NodeAdmission | None, one: Outside, now: datetime) -> str:
    if admission is None:
        return "it has no NodeAdmission that can be read"
    asks = {"held": admission.spec.hold, "quarantined": admission.spec.quarantine, "in repair": admission.spec.repair}
    if word := next((word for word, ask in asks.items() if active(ask, now) is not None), ""):
        return f"it is {word}"
    ask = admission.spec.retest
    if ask is not None and _waits(admission, now):
        return f"a test is asked for already, by {ask.who} at {ask.since}"
    if ask is not None and _ours(admission) and _done(admission):
        if one.tested_at > ask.since:
            return f"it was tested for this since {ask.since}, and is the same: a person has to look"
        return f"it was tested since {ask.since}; bring that report with playbooks/burnin.yml or site.yml"
    if admission.status.state not in (State.READY, State.EXPIRING):
        return f"it is {admission.status.state}"
    return ""
