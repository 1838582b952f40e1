"""The desired state of a Node for a plan: taints, labels, annotations, condition. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.draining import Draining
from gpu_burnin.admission.decide.judge import Facts, Judged, VerdictLabel
from gpu_burnin.admission.decide.maintenance import Windows
from gpu_burnin.admission.decide.nodes import effects, taints
from gpu_burnin.admission.decide.patches import DesiredState, node_patch
from gpu_burnin.admission.decide.plan import Plan
from gpu_burnin.admission.decide.restored import doubted
from gpu_burnin.admission.decide.retest import request_annotation
from gpu_burnin.admission.drain import leave_annotation
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.names import NO_EXECUTE, NO_SCHEDULE, READY_LABEL, SIMULATED_LABEL, VERDICT_LABEL, Names
from gpu_burnin.api.record import Accepted, State, Status
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import to_json


def desired_state(
    facts: Facts, judged: Judged, plan: Plan, calendar: Windows, leaving: Draining, status: Status
) -> DesiredState:
    """All that is ours on the Node."""
    names, node, request = facts.rules.names, facts.node, plan.test_request.request
    restored = doubted(facts.spec, status)
    wanted: dict[tuple[str, str], str] = {}
    if not plan.open:
        # NoExecute only after a boot: it would end what still runs on a node that is merely in doubt.
        after_boot = {NO_EXECUTE} if judged.rebooted else set()
        wanted |= {(names.preflight, effect): "" for effect in _ordered(effects(node, names.preflight) | after_boot)}
    if leaving.code:
        ended = {NO_EXECUTE} if leaving.lost or _was_lost(node, names, leaving.code) else set()
        wanted |= {(names.quarantine, effect): leaving.code for effect in _ordered(ended)}
    if plan.open and plan.phase.state is State.TESTING:
        wanted[names.testing, NO_SCHEDULE] = ""
    if calendar.why:
        wanted[names.maintenance, NO_SCHEDULE] = ""
    simulated = plan.open and status.accepted is not None and status.accepted.simulated
    labels = {
        READY_LABEL: "true" if plan.open else None,
        VERDICT_LABEL: str(VerdictLabel.EXPIRED if judged.code == "EVIDENCE_EXPIRED" else judged.verdict),
        SIMULATED_LABEL: "true" if simulated else None,
    }
    annotations = {
        names.request: request_annotation(request) if request is not None and plan.test_request.sent else None,
        names.leave: leave_annotation(leaving.leave) if leaving.leave is not None else None,
        names.restored: restored.since if restored is not None else None,
    }
    if plan.open and status.accepted is not None:
        annotations[names.admitted] = _note(status.accepted)
    return DesiredState(wanted, labels, annotations)


def condition_of(judged: Judged, plan: Plan) -> tuple[str, str]:
    """Status and reason of the condition: True for a node that may take work, and for no other."""
    bad = "False" if judged.verdict is VerdictLabel.FAIL else "Unknown"
    return "True" if plan.open else bad, plan.phase.code


def shut(node: Node, names: Names) -> DesiredState:
    """A Node that nobody admits."""
    wanted = {(names.preflight, effect): "" for effect in _ordered(effects(node, names.preflight))}
    return DesiredState(wanted, {READY_LABEL: None, SIMULATED_LABEL: None})


def maintenance_patch(node: Node, calendar: Windows, names: Names) -> Patch | None:
    """The taint of a maintenance window alone."""
    desired = DesiredState({(names.maintenance, NO_SCHEDULE): ""} if calendar.why else {})
    return node_patch(node, desired, (names.maintenance,))


def _ordered(more: frozenset[str] | set[str]) -> tuple[str, ...]:
    return (NO_SCHEDULE, NO_EXECUTE) if NO_EXECUTE in more else (NO_SCHEDULE,)


def _was_lost(node: Node, names: Names, code: str) -> bool:
    found = (t for t in taints(node) if t.get("key") == names.quarantine and t.get("effect") == NO_EXECUTE)
    return any(taint.get("value") == code for taint in found)


def _note(accepted: Accepted) -> str:
    note = {key: value for key, value in to_json(accepted).items() if key != "hardware"}
    return canonical_json(note).decode("ascii")
