"""Whether the work on a node is asked to leave, who goes now, and who is left until its hold ends. Pure.

Pods leave by the eviction API, so that their PodDisruptionBudgets and grace periods hold. A pod that carries the
annotation DOMAIN/hold-until is not evicted before that time, or before the annotation is gone ("checkpoint"). At the
deadline of the ask everybody leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.finding import Finding
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import active, ask_sentence, sentence
from gpu_burnin.admission.view import Pod, Rules
from gpu_burnin.api.evidence_codes import FATAL
from gpu_burnin.api.jobs import CHECKPOINT
from gpu_burnin.api.record import DrainRequest, Next, RecordError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.codec import to_json


@dataclass(frozen=True)
class Leaving:
    """`evict` are asked now. `waiting` are left, each with until when: a time, or "checkpoint".

    `told` are those who are told more than that they are evicted: until when they are left, or why their hold is none.
    `wake_at` is when time alone lets the next one go.
    """

    evict: tuple[Pod, ...] = ()
    waiting: tuple[tuple[Pod, str], ...] = ()
    pod_events: tuple[tuple[Pod, str], ...] = ()
    wake_at: datetime | None = None


@dataclass(frozen=True)
class Draining:
    """`code` is why the node is in quarantine, "" where it is not; `lost`: its work is, and no pod holds.

    `next` is what comes next while pods hold.
    """

    code: str = ""
    lost: bool = False
    leave: DrainRequest | None = None
    pods: Leaving = Leaving()
    next: Next | None = None


def draining(facts: Facts, own: Finding) -> Draining:
    """No drain begins in a maintenance window; one that has begun goes on."""
    quarantine = active(facts.spec.quarantine, facts.now)
    if not own.fault and quarantine is None:
        return Draining()
    code = own.fault or "QUARANTINED_BY_PERSON"
    why = own.message if own.fault or quarantine is None else ask_sentence("quarantine", quarantine)
    begun = facts.status.leave
    if begun is not None and when(begun.deadline) is None:
        begun = None
    deadline = later(facts.now, facts.rules.hold_deadline_s)
    leave = begun or DrainRequest(stamp(facts.now), stamp(deadline), sentence(f"{code}: {why}"))
    pods = who_leaves(facts.view.pods, leave, facts.now, facts.rules)
    lost, held = code in FATAL and not pods.waiting, len(pods.waiting)
    if begun is None and (not (pods.evict or held) or facts.windows.why):
        return Draining(code, lost)
    until = stamp(pods.wake_at) if pods.wake_at is not None else leave.deadline
    words = f"its work is asked to leave; pods that hold: {held}"
    return Draining(code, lost, leave, pods, Next("the next pod leaves", words, until) if held else None)


def pod_notes(pods: Iterable[Pod], leave: DrainRequest | None, teams: Collection[str]) -> tuple[tuple[Pod, str], ...]:
    """The pods whose annotation DOMAIN/leave is to change, each with its value, "" for none.

    Those in the namespaces of teams alone; all others mount the node's own file, or hear of it by their eviction.
    """
    value = leave_annotation(leave) if leave is not None else ""
    told = (pod for pod in pods if pod.namespace in teams and not (pod.daemon or pod.ended or pod.leaving))
    return tuple((pod, value) for pod in told if pod.leave != value)


def leave_annotation(leave: DrainRequest) -> str:
    """The value of the annotation DOMAIN/leave."""
    return canonical_json(to_json(leave)).decode("ascii")


def who_leaves(pods: Iterable[Pod], leave: DrainRequest, now: datetime, rules: Rules) -> Leaving:
    """Who of the node's pods is evicted now, and who waits. Daemons, ended pods and those that leave are in neither.

    Raises RecordError for an ask whose deadline cannot be read.
    """
    try:
        deadline = parse_rfc3339(leave.deadline)
    except ValueError as error:
        raise RecordError(f"the deadline {leave.deadline!r} by which the work should leave cannot be read") from error
    evict: list[Pod] = []
    waiting: list[tuple[Pod, str]] = []
    pod_events: list[tuple[Pod, str]] = []
    ends: list[datetime] = []
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        if pod.daemon or pod.ended or pod.leaving:
            continue
        hold = pod.hold_until.strip()
        try:
            end = deadline if hold == CHECKPOINT else parse_rfc3339(hold) if hold else now
        except ValueError as error:
            why = (
                f"it is not held, since its annotation {rules.names.hold_until} is {hold[:64]!r} ({error}); write a "
                f'time such as 2026-11-22T18:00:00Z, or "{CHECKPOINT}"'
            )
            pod_events.append((pod, why))
            end = now
        if min(end, deadline) <= now:
            evict.append(pod)
        else:
            until = leave.deadline if end > deadline else hold
            waiting.append((pod, until))
            end_in_words = f"its {CHECKPOINT}, at most to {leave.deadline}" if hold == CHECKPOINT else until
            pod_events.append((pod, f"it is asked to leave, and is left until {end_in_words}"))
            ends.append(min(end, deadline))
    return Leaving(tuple(evict), tuple(waiting), tuple(pod_events), min(ends, default=None))
