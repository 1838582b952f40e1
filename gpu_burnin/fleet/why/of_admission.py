"""What a NodeAdmission and the agent's note say, as entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_burnin.admission.decide.outlook import TAKEN_OUT
from gpu_burnin.api.agent_note import AgentNote, Maintenance, NoteError, read_note
from gpu_burnin.api.names import ADMITTER_USER, Names
from gpu_burnin.api.record import Ask, NodeAdmission, State, Tested, Transition
from gpu_burnin.api.remedies import AGENT
from gpu_burnin.fleet.why.entry import Entry, Source, What, kind_of_finding
from gpu_burnin.hardware import load_reasons
from gpu_burnin.system.clock import time_of
from gpu_burnin.types import Verdict

# Codes of the admission that say what a change of state comes of; the codes of faults are those of the burn-in.
_OF_CODE: Mapping[str, What] = {
    "HELD_BY_PERSON": What.PERSON,
    "QUARANTINED_BY_PERSON": What.PERSON,
    "REPAIRING": What.PERSON,
    "REBOOTED": What.BOOTED,
    "EVIDENCE_BOOT": What.BOOTED,
    "FABRIC_NODE": What.QUARANTINED,
    "MAINTENANCE": What.MAINTENANCE,
    "NODE_UNKNOWN": What.LOST,
    "NODE_ABSENT": What.LOST,
}
_OUT = (State.QUARANTINED, State.SUSPECT)
_DONE = frozenset({"completed", "none", ""})


def of_admission(record: NodeAdmission) -> Iterator[Entry]:
    """The burn-ins that it knows of and what people ask now, then the transitions that came of them, in their order."""
    node, status = record.name, record.status
    accepted, test = status.accepted, status.last_test
    if accepted is not None and (at := time_of(accepted.finished_at)):
        message = f"the {accepted.level} burn-in passed that the node was admitted with"
        yield Entry(at, Source.ADMISSION, What.TOLD, message, node=node)
    if test is not None and (at := time_of(test.finished_at)) and test.verdict != Verdict.PASS:
        message = _found(record, test)
        kind = kind_of_finding(test.code, message) if test.verdict == Verdict.FAIL else What.TOLD
        yield Entry(at, Source.ADMISSION, kind, message, test.code, node=node)
    for name in ("hold", "quarantine", "retest", "repair"):
        ask: Ask | None = getattr(record.spec, name)
        if ask is not None and (at := time_of(ask.since)):
            kind = What.TOLD if name == "retest" else What.PERSON
            until = f" until {ask.until}" if ask.until else ""
            yield Entry(at, Source.ADMISSION, kind, f"{name} asked for{until}: {ask.why}", "", ask.who, node)
    for step in status.transitions:
        if at := time_of(step.at):
            who = step.who if step.who != ADMITTER_USER else ""
            way = f"{step.before or '-'} to {step.after}: " if step.before != step.after else ""
            yield Entry(at, Source.ADMISSION, kind_of(step), f"{way}{step.message}", step.code, who, node)


def _found(record: NodeAdmission, test: Tested) -> str:
    """What a run found: the change of state that came of it has the words."""
    steps = [step for step in record.status.transitions if step.code == test.code and step.at >= test.finished_at]
    said = f": {steps[0].message}" if test.code and steps else ""
    return f"a {test.level} burn-in told {test.verdict}{said}"


def kind_of(step: Transition) -> What:
    """What a change of state is a sign of."""
    if step.code in _OF_CODE:
        return _OF_CODE[step.code]
    if step.after not in _OUT:
        return What.TOLD
    return What.QUARANTINED if step.code in load_reasons() else What.DOUBTED


def is_braked(record: NodeAdmission) -> bool:
    """Whether it is at work though it should not be, since nobody gave the admitter leave."""
    coming = record.status.next
    return coming is not None and coming.what == TAKEN_OUT


def out_of_service(record: NodeAdmission) -> Transition | None:
    """The change that took it out of service last; None for a node that never was out, as far as is kept."""
    out = [step for step in record.status.transitions if step.after != State.READY and step.before != step.after]
    left = [step for step in out if step.before in (State.READY, State.EXPIRING)]
    return next(reversed(left or out), None)


def note_of(node: Mapping[str, Any] | None, names: Names) -> tuple[AgentNote | None, str]:
    """The agent's note on a Node, or why there is none."""
    if node is None:
        return None, "there is no Node object: kubelet has not registered it"
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(names.agent)
    if not text:
        return None, f"the agent has left no note on the Node ({AGENT})"
    try:
        return read_note(str(text)), ""
    except NoteError as error:
        return None, str(error)


def of_note(node: str, note: AgentNote) -> Iterator[Entry]:
    """The agent's warnings, and the maintenance that the cloud has told it of."""
    for warned in note.warnings:
        if at := time_of(warned.at):
            yield Entry(
                at, Source.AGENT, kind_of_finding(warned.code, warned.message), warned.message, warned.code, "", node
            )
    if note.maintenance is not None:
        yield from _of_window(node, note.maintenance)


def _of_window(node: str, window: Maintenance) -> Iterator[Entry]:
    at = time_of(window.not_before)
    if at is None or window.state in _DONE:
        return
    words = (f"{window.provider} maintenance", window.kind, window.state, window.message)
    end = f"until {window.not_after}" if window.not_after else "its end is not known"
    message = f"{', '.join(word for word in words if word)}; {end}"
    yield Entry(at, Source.AGENT, What.MAINTENANCE, message, "", "", node)
