"""Judging XIDs and SXids by the policy table: pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from gpu_burnin.hardware import Preflight, Runtime, XidPolicy, XidTable, make_reason
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.pci import normal_bus_id
from gpu_burnin.types import JSON, Action, Gpu, Reason

CHECK = "kernel_log"
_SEVERITY_WORD = re.compile(r"\b(?:non-?)?fatal\b", re.IGNORECASE)


def judge_xids(
    events: Iterable[XidEvent],
    gpus: Sequence[Gpu],
    gaps: int,
    sources: str | Sequence[str],
    table: XidTable,
    own_pids: Collection[int] = (),
    *,
    preflight_from_us: int = 0,
) -> tuple[Reason, ...]:
    """What the kernel log says against the node.

    `own_pids` are the processes that the executor itself killed: codes that a kill causes are then its own
    doing. Events at or after `preflight_from_us` (microseconds since boot) are judged by the preflight
    column, earlier ones, which users' work may have caused, by the runtime column. Each code on each device
    gives one reason, however often it was logged.
    """
    if not sources:
        return (make_reason("XID_SOURCE_MISSING", CHECK, "neither the journal nor /dev/kmsg shows kernel messages"),)
    reasons: list[Reason] = []
    if gaps:
        names = sources if isinstance(sources, str) else ", ".join(sources)
        message = f"{gaps} or more kernel messages since boot are lost (read from {names})"
        reasons.append(make_reason("XID_GAP", CHECK, message, evidence={"gaps": gaps}))
    uuids = {normal_bus_id(gpu.pci_bus_id): gpu.uuid for gpu in gpus}
    foreign = [event for event in events if not _own(event, table, own_pids)]
    for group in _groups(foreign):
        judged = [r for e in group if (r := _judge(e, len(group), uuids, table, preflight_from_us))]
        if judged:
            reasons.append(max(judged, key=lambda reason: (reason.code == "XID_FATAL", reason.action.rank)))
    return tuple(reasons)


def _own(event: XidEvent, table: XidTable, own_pids: Collection[int]) -> bool:
    policy = table.policy(event.xid, sxid=event.sxid)
    return policy is not None and policy.own_kill and event.pid in own_pids


def _groups(events: Iterable[XidEvent]) -> list[list[XidEvent]]:
    """Events by code and device, in the order of their first appearance.

    An SXid comes with lines of details that repeat its code without saying how bad it is: they are dropped
    when another line says so.
    """
    groups: dict[tuple[bool, int, str], list[XidEvent]] = {}
    for event in events:
        groups.setdefault((event.sxid, event.xid, event.pci_bus_id), []).append(event)
    for (sxid, _, _), group in groups.items():
        graded = [event for event in group if _SEVERITY_WORD.search(event.text)]
        if sxid and graded:
            group[:] = graded
    return list(groups.values())


def _judge(
    event: XidEvent, count: int, uuids: dict[str, str], table: XidTable, preflight_from_us: int
) -> Reason | None:
    kind = "SXid" if event.sxid else "XID"
    gpu = None if event.sxid else uuids.get(event.pci_bus_id)
    in_preflight = event.monotonic_us >= preflight_from_us
    policy = table.policy(event.xid, sxid=event.sxid)
    evidence: dict[str, JSON] = {
        "xid": event.xid,
        "sxid": event.sxid,
        "pci_bus_id": event.pci_bus_id,
        "pid": event.pid,
        "count": count,
        "monotonic_us": event.monotonic_us,
        "text": event.text,
    }
    where = f"{kind} {event.xid} on {event.pci_bus_id}"
    times = f", {count} times" if count > 1 else ""
    if policy is None:
        if not in_preflight:
            return None
        message = f"{where}{times}: the code is not in the table ({event.text})"
        return make_reason("XID_UNKNOWN", CHECK, message, gpu=gpu, evidence=evidence)
    code, action = _outcome(policy, event.text, in_preflight)
    if code is None:
        return None
    return make_reason(code, CHECK, f"{where}{times}: {policy.meaning}", gpu=gpu, evidence=evidence, action=action)


def _outcome(policy: XidPolicy, text: str, in_preflight: bool) -> tuple[str | None, Action]:
    """The reason code, None when the event does not count, and the action."""
    preflight, runtime, action = policy.for_text(text)
    if not in_preflight:
        return ("XID_FATAL" if runtime is Runtime.REVOKE else None), action
    if preflight is Preflight.FAIL:
        return "XID_FATAL", action
    if preflight in (Preflight.RETRY, Preflight.HOLD):
        return "XID_SUSPECT", Action.HOLD if preflight is Preflight.HOLD else action
    return None, action
