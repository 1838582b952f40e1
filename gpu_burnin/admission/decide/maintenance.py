"""What maintenance means for a decision: the cloud's notice and the inventory's calendar together. Pure.

Unknown is not none: while the cloud's answer is unknown nothing of ours that could wait is started.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from gpu_burnin.admission.decide.times import earliest, stamp, when
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.admission.view import Rules, View
from gpu_burnin.api.maintenance import active, changes_at, unknown
from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.api.record import Status, Transition, with_step

BEGUN, OVER = "MAINTENANCE", "MAINTENANCE_OVER"


@dataclass(frozen=True)
class Windows:
    """`why` is the window that is near or open, "" for none; `unknown` why nobody can say whether there is one.

    `changes_at` is when time alone changes it.
    """

    why: str = ""
    unknown: str = ""
    changes_at: datetime | None = None


def windows(view: View, status: Status, rules: Rules, now: datetime) -> Windows:
    """The node's windows as they are now. One that has begun is not over because its source no longer answers."""
    announced = () if view.agent is None else (view.agent.maintenance,)
    why, unclear, changes = "", "", None
    for one in (*announced, *view.calendar):
        if one is None:
            continue
        why = why or active(one, now, rules.maintenance_before_s)
        unclear = unclear or unknown(one)
        end = when(one.not_after)
        changes = earliest(
            changes, changes_at(one, now, rules.maintenance_before_s), end if end is not None and end > now else None
        )
    if unclear and not why and _newest(status, BEGUN) is not None:
        why = f"a window has begun, and now {unclear}"
    return Windows(sentence(why), sentence(unclear), changes)


def with_transition(status: Status, calendar: Windows, now: datetime) -> Status:
    """The begin and the end of a window stand among the transitions, whatever state the node is in."""
    begun = _newest(status, BEGUN) is not None
    if begun == bool(calendar.why) or (begun and calendar.unknown):
        return status
    code, why = (OVER, "the window is over") if begun else (BEGUN, calendar.why)
    step = Transition(stamp(now), str(status.state), str(status.state), code, why, ADMITTER_USER)
    return replace(status, transitions=with_step(status.transitions, step))


def ended_at(status: Status) -> datetime | None:
    """When the record's newest window was over; None where none was."""
    found = _newest(status, OVER)
    return when(found.at) if found is not None else None


def _newest(status: Status, code: str) -> Transition | None:
    """The record's newest word on maintenance, if it is this one."""
    found = next((t for t in reversed(status.transitions) if t.code in (BEGUN, OVER)), None)
    return found if found is not None and found.code == code else None
