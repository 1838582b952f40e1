"""Whether the work on a node is asked to leave, who goes now and who is waited for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.judge import Facts, Judged
from gpu_burnin.admission.decide.maintenance import Windows
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import active, ask_sentence, sentence
from gpu_burnin.admission.drain import who_leaves
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.evidence_codes import FATAL
from gpu_burnin.api.record import DrainRequest, Next


@dataclass(frozen=True)
class Draining:
    """`code` is why the node is in quarantine, "" where it is not; `lost`: its work is, and no pod holds.

    `next` is what comes next while pods hold.
    """

    code: str = ""
    leave: DrainRequest | None = None
    evict: tuple[Pod, ...] = ()
    pod_events: tuple[tuple[Pod, str], ...] = ()
    lost: bool = False
    next: Next | None = None
    wake_at: datetime | None = None


def draining(facts: Facts, judged: Judged, calendar: Windows) -> Draining:
    """No drain begins in a maintenance window; one that has begun goes on."""
    quarantine = active(facts.spec.quarantine, facts.now)
    if not judged.fault and quarantine is None:
        return Draining()
    code = judged.fault or "QUARANTINED_BY_PERSON"
    why = judged.message if judged.fault or quarantine is None else ask_sentence("quarantine", quarantine)
    begun = facts.status.leave
    if begun is not None and when(begun.deadline) is None:
        begun = None
    deadline = later(facts.now, facts.rules.hold_deadline_s)
    leave = begun or DrainRequest(stamp(facts.now), stamp(deadline), sentence(f"{code}: {why}"))
    leaving = who_leaves(facts.view.pods, leave, facts.now, facts.rules)
    lost = code in FATAL and not leaving.waiting
    nobody = not leaving.evict and not leaving.waiting
    if begun is None and (nobody or calendar.why):
        return Draining(code, lost=lost)
    held = len(leaving.waiting)
    until = stamp(leaving.wake_at) if leaving.wake_at is not None else leave.deadline
    planned = (
        Next("the next pod leaves", f"its work is asked to leave; pods that hold: {held}", until) if held else None
    )
    return Draining(code, leave, leaving.evict, leaving.pod_events, lost, planned, leaving.wake_at)
