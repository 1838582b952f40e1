"""Who leaves a node now, and who is left until its hold ends. Pure.

Pods leave by the eviction API, so that their PodDisruptionBudgets and grace periods hold. A pod that carries the
annotation DOMAIN/hold-until is not evicted before that time, or before the annotation is gone ("checkpoint"). At the
deadline of the ask everybody leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.view import Pod, Rules
from gpu_burnin.api.record import DrainRequest, RecordError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.codec import to_json

CHECKPOINT = "checkpoint"


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
