"""Judging XIDs and SXids by the policy table: pure, no I/O."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache

from gpu_burnin.hardware import Preflight, Runtime, XidTable, make_reason
from gpu_burnin.judge.ladder import driver_decides
from gpu_burnin.judge.nvlink5 import decode, is_understated, worst_rule
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.telemetry.kmsg import SAME_LINE_US, UNREADABLE, XidEvent, lost_messages
from gpu_burnin.telemetry.pci import normal_bus_id
from gpu_burnin.telemetry.sampling_record import EVENTS
from gpu_burnin.types import JSON, Action, Notice, Reason

CHECK = "kernel_log"
RECOVERY_XID, CLEANUP_XID = 154, 45
_NO_LOG = "no kernel log can be read (run as root with the journal or /dev/kmsg, or set kernel_log)"
_FOREIGN = "no real GPU was looked at, so this machine's log says nothing about one"
# The driver says so at the end of XID 45's lines (open-gpu-kernel-modules, kernel_rc.c, krcReportXid).
_CAUSE = re.compile(r"\bcaused by previous Xid (\d{1,9})\b", re.IGNORECASE)
_SEVERITY_WORD = re.compile(r"\b(?:non-?)?fatal\b", re.IGNORECASE)


class When(Enum):
    """When an event happened, which decides the column of the table."""

    RUN = auto()  # while only our tests ran: preflight
    BEFORE = auto()  # before this run and nobody's work: preflight, but this run is the retest
    USERS = auto()  # before this run, perhaps by users' work: runtime


@dataclass(frozen=True)
class Decision:
    """The policy for one event; `known` False: nobody described it. `code` is the reason's where it is no XID."""

    preflight: Preflight
    runtime: Runtime
    action: Action
    meaning: str = ""
    known: bool = True
    code: str = ""


# A GPU that the driver could not start does no work, whoever waits for it.
UNSTARTED = Decision(Preflight.FAIL, Runtime.REVOKE, Action.REBOOT, code="GPU_NOT_STARTED")
# What nobody has described is held: a doubt keeps a node out.
UNKNOWN = Decision(Preflight.HOLD, Runtime.WARN, Action.HOLD, known=False)


@dataclass(frozen=True)
class _Judged:
    """One event with the code it deserves. `holds` says that it keeps the node out; otherwise it is a notice."""

    code: str
    action: Action
    event: XidEvent
    meaning: str
    holds: bool


def judge_xids(seen: Observations) -> Findings:
    """What the kernel log, and NVML's own reports, say against the node.

    Codes that a kill causes are the run's own doing where the driver blames a process that the executor killed. What
    was there before the run counts by the runtime column where users' work may have caused it, and otherwise like the
    run's own, but for the codes that ask for a retest: this run is the retest; what the log no longer has counts all
    the same, and as a gap. What the driver says it has recovered from since (XID 154 back to None after a reset) is
    told, not held against it. XIDs that NVML reported during the run count where the log does not have them. Each code
    on each device gives one reason, however often it came, and where XID 154 says what the GPU needs, that is the
    action. An XID that the log has only as the cause of an XID 45 counts as if it were there. Where NVML reported every
    XID of the run, and nothing asks for what was before it, a PASS may do without a log, and with one whose beginning
    the kernel has overwritten; one that lost what it had during the run is cut, and held against it all the same. Where
    no real GPU is behind the run, what this machine's own log lacks is a warning: it says nothing about simulated GPUs.
    A file that stands in for that log is the simulated GPUs' own, and counts.
    """
    lines = causes_followed((*seen.kernel_log.before, *seen.kernel_log.events))
    until = len(seen.kernel_log.before)
    log = replace(seen.kernel_log, before=lines[:until], events=lines[until:])
    foreign, driver_told = _is_foreign(seen), not seen.opens_gate and _driver_reports(seen)
    # What was there before the run must still be there after it, unless the log was cut.
    kept = _earlier(log.before, log.events)
    vanished = tuple(event for event in log.before if event not in kept)
    reasons: list[Reason] = []
    notices: tuple[Notice, ...] = ()
    if not log.alive and driver_told:
        notices = (Notice("XID_SOURCE_MISSING", CHECK, f"{_NO_LOG}: XIDs before this run and SXids go unseen"),)
    elif not log.alive and foreign:
        notices = (Notice("XID_SOURCE_MISSING", CHECK, f"{_NO_LOG}: {_FOREIGN}"),)
    elif not log.alive:
        reasons.append(make_reason("XID_SOURCE_MISSING", CHECK, _NO_LOG))
    elif gaps := log.gaps or len(vanished):
        message = f"{lost_messages(gaps)} since boot (read from {log.source})"
        if driver_told and not vanished:
            notices = (Notice("XID_GAP", CHECK, f"{message}: XIDs among them go unseen", details={"gaps": gaps}),)
        elif foreign:
            notices = (Notice("XID_GAP", CHECK, f"{message}: {_FOREIGN}", details={"gaps": gaps}),)
        else:
            reasons.append(make_reason("XID_GAP", CHECK, message, details={"gaps": gaps}))
    old = _earlier(logged := (*vanished, *log.events), log.before)
    events = _findings(_merged(logged, seen.telemetry.xids, old), seen, old)
    return Findings((*reasons, *events.reasons), (*notices, *events.notices))


@dataclass(frozen=True)
class WorkXid:
    """What an XID on a node in production is worth. `fatal`: the node's admission is taken back."""

    code: str
    message: str
    fatal: bool
    event: XidEvent
    action: Action


def judge_work(events: Iterable[XidEvent], table: XidTable) -> tuple[WorkXid, ...]:
    """XIDs and SXids while users work on the node, by the runtime column: one for each code and device."""
    found = []
    for group in _groups(causes_followed(tuple(events))):
        judged = [one for event in group if (one := _judge(event, When.USERS, table, None))]
        if judged:
            worst = max(judged, key=lambda one: (one.holds, one.action.rank))
            found.append(WorkXid(worst.code, _message(worst, len(group)), worst.holds, worst.event, worst.action))
    return tuple(found)


def _is_foreign(seen: Observations) -> bool:
    """Whether the log is that of a machine whose GPUs, if it has any, are not those under test."""
    return seen.no_real_gpu and not seen.kernel_log.simulated


def _driver_reports(seen: Observations) -> bool:
    """Whether NVML would have reported each XID of each GPU under test, from the begin of the run to its end."""
    alive = {source.gpu for source in seen.telemetry.sources if source.name == EVENTS and source.alive}
    return bool(seen.watched) and all(gpu.uuid in alive for gpu in seen.watched)


def _earlier(events: Iterable[XidEvent], before: Sequence[XidEvent]) -> frozenset[XidEvent]:
    """Those events that were there before the run. The sources may give one line times that differ a little."""
    times: dict[tuple[str, str], list[int]] = {}
    for event in sorted(before, key=lambda event: event.monotonic_us):
        times.setdefault((event.pci_bus_id, event.text), []).append(event.monotonic_us)
    return frozenset(
        event for event in events if _is_near(event.monotonic_us, times.get((event.pci_bus_id, event.text), ()))
    )


def _is_near(at_us: int, times_us: Sequence[int]) -> bool:
    """Whether one of the times, which are in order, is that of the same line: a storm has thousands of one text."""
    first = bisect_left(times_us, at_us - SAME_LINE_US)
    return first < len(times_us) and times_us[first] <= at_us + SAME_LINE_US


def _merged(
    logged: Sequence[XidEvent], reported: Iterable[XidEvent], old: Collection[XidEvent] = ()
) -> tuple[XidEvent, ...]:
    """The log's events, and NVML's that the log does not have: by code and device, among those of the run."""
    fresh = [event for event in logged if event not in old]
    have = {(event.sxid, event.xid, event.pci_bus_id) for event in fresh}
    have |= {(False, CLEANUP_XID, event.pci_bus_id) for event in fresh if _cause(event) is not None}
    more = {(event.sxid, event.xid, event.pci_bus_id): event for event in reported}
    return (*logged, *(event for key, event in more.items() if key not in have))


def _findings(events: Sequence[XidEvent], seen: Observations, old: Collection[XidEvent]) -> Findings:
    """The policy for events, of which `old` were there before the run."""
    table = seen.rules.xids
    uuids = {normal_bus_id(gpu.pci_bus_id): gpu.uuid for gpu in seen.gpus}
    recovered, demands = _recovery(events, table)
    reasons: list[Reason] = []
    notices: list[Notice] = []
    earlier = When.USERS if seen.passed_this_boot else When.BEFORE
    foreign = [event for event in events if event in old or not is_own(event, table, seen.killed_pids)]
    for group in _groups(foreign):
        judged = [
            found
            for event in group
            if (found := _judge(event, earlier if event in old else When.RUN, table, recovered.get(event.pci_bus_id)))
        ]
        if not judged:
            continue
        worst = max(judged, key=lambda one: (one.holds, one.code == "XID_FATAL", one.action.rank))
        gpu = None if worst.event.sxid else uuids.get(worst.event.pci_bus_id)
        message, details = _message(worst, len(group)), _evidence(worst.event, len(group))
        if worst.holds:
            demand = None if worst.event.sxid else demands.get(worst.event.pci_bus_id)
            action = driver_decides(worst.action, demand)
            reasons.append(make_reason(worst.code, CHECK, message, gpu=gpu, details=details, action=action))
        else:
            notices.append(Notice(worst.code, CHECK, message, gpu, details))
    return Findings(tuple(reasons), tuple(notices))


def causes_followed(events: Sequence[XidEvent]) -> tuple[XidEvent, ...]:
    """The events, each XID 45 as the XID that its line names as its cause where no line of its own tells of that one on
    the same GPU. NVIDIA's catalog: of XID 45 and another one, the other one is followed."""
    told = {(event.xid, event.pci_bus_id) for event in events if not event.sxid}
    return tuple(
        replace(event, xid=cause) if cause is not None and (cause, event.pci_bus_id) not in told else event
        for event, cause in ((event, _cause(event)) for event in events)
    )


def _cause(event: XidEvent) -> int | None:
    return None if event.sxid else _cause_in(event.text)


@lru_cache(maxsize=256)  # a storm has thousands of lines of few texts, and each is asked about several times
def _cause_in(text: str) -> int | None:
    found = _CAUSE.search(text)
    return int(found[1]) if found else None


def is_own(event: XidEvent, table: XidTable, own_pids: Collection[int]) -> bool:
    """Whether the event is the doing of whoever killed the processes `own_pids`."""
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


def _recovery(events: Iterable[XidEvent], table: XidTable) -> tuple[dict[str, int], dict[str, Action]]:
    """By device, from XID 154: when the driver last reported it as recovered (us), and what it asks for now."""
    recovered: dict[str, int] = {}
    demands: dict[str, Action] = {}
    policy = table.policy(RECOVERY_XID, sxid=False)
    changes = [event for event in events if event.xid == RECOVERY_XID and not event.sxid]
    for event in sorted(changes if policy else (), key=lambda event: event.monotonic_us):
        preflight, _, action = policy.for_text(event.text)  # type: ignore[union-attr]
        demands.pop(event.pci_bus_id, None)
        if action is Action.NONE:
            recovered[event.pci_bus_id] = event.monotonic_us
        elif preflight is Preflight.FAIL:
            demands[event.pci_bus_id] = action
    return recovered, demands


def _judge(event: XidEvent, when: When, table: XidTable, recovered_us: int | None) -> _Judged | None:
    """What one event is worth; None when it is worth nothing."""
    policy = _decide(event, table)
    code, action, holds = outcome(policy, when)
    if code is None:
        return None
    found = _Judged(code, action, event, policy.meaning, holds)
    clears = action is Action.RESET_GPU or event.xid == RECOVERY_XID
    if holds and when is not When.RUN and clears and recovered_us is not None and recovered_us > event.monotonic_us:
        return replace(found, meaning=f"{policy.meaning}; the driver has recovered since (XID 154)", holds=False)
    return found


def _decide(event: XidEvent, table: XidTable) -> Decision:
    """The table's word on this event: by code, by the text, and for NVLink 5 by the registers."""
    policy = table.policy(event.xid, sxid=event.sxid)
    if event.unstarted:
        return replace(UNSTARTED, meaning=event.text)
    if event.xid == UNREADABLE:
        return replace(UNKNOWN, meaning=f"the driver's line does not say which ({event.text})")
    if policy is None:
        return replace(UNKNOWN, meaning=f"the code is not in the table ({event.text})")
    named = ", which the driver names as the cause of an XID 45" if _cause(event) == event.xid else ""
    by_text = Decision(*policy.for_text(event.text), f"{policy.meaning}{named}")
    error = None if event.sxid else decode(event.xid, event.text)
    if error is None:
        return by_text
    rule = worst_rule(error, table.nvlink5)
    place = f"{policy.meaning}, {'/'.join(sorted(error.units))}, status {error.status:#x}"
    if rule is None and not error.says_fatal:
        return replace(UNKNOWN, meaning=f"{place}: the subcode is not in the table ({event.text})")
    if rule is None or is_understated(error, rule):
        return replace(by_text, meaning=f"{place}, called fatal by the driver")
    hint = f": {rule.hint}" if rule.hint else ""
    return Decision(rule.preflight, rule.runtime, rule.action, f"{place}, {rule.severity}{hint}")


def outcome(policy: Decision, when: When) -> tuple[str | None, Action, bool]:
    """The reason code (None when the event does not count), the action, and whether it keeps the node out."""
    if not policy.known:
        return "XID_UNKNOWN", policy.action, when is not When.USERS
    if when is When.USERS:
        if policy.runtime is Runtime.LOG:
            return None, policy.action, False
        fatal = policy.runtime is Runtime.REVOKE
        return policy.code or ("XID_FATAL" if fatal else "XID_SUSPECT"), policy.action, fatal
    if policy.preflight is Preflight.FAIL:
        return policy.code or "XID_FATAL", policy.action, True
    if policy.preflight is Preflight.HOLD:
        return "XID_SUSPECT", Action.HOLD, True
    if policy.preflight is Preflight.RETRY:
        return "XID_SUSPECT", policy.action, when is When.RUN
    return (None if policy.preflight is Preflight.LOG else "XID_SUSPECT"), policy.action, False


def _message(judged: _Judged, count: int) -> str:
    event = judged.event
    times = f", {count} times" if count > 1 else ""
    kind = "SXid" if event.sxid else "XID"
    if event.unstarted:
        place = f"the GPU at {event.pci_bus_id}" if event.pci_bus_id else "a GPU that no line names"
        return f"the driver could not start {place}{times}: {judged.meaning}"
    if event.xid == UNREADABLE:
        return f"an {kind} that cannot be read{times}: {judged.meaning}"
    return f"{kind} {event.xid} on {event.pci_bus_id}{times}: {judged.meaning}"


def _evidence(event: XidEvent, count: int) -> dict[str, JSON]:
    return {
        "xid": event.xid,
        "sxid": event.sxid,
        "pci_bus_id": event.pci_bus_id,
        "pid": event.pid,
        "count": count,
        "monotonic_us": event.monotonic_us,
        "text": event.text,
    }
