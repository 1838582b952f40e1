"""Each situation of a node, and what is decided of it: the admission's rules as one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_burnin.admission.view import Budget, Evidence, View
from gpu_burnin.api.agent_note import AgentNote, Maintenance, Warned
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.record import Ask, Hardware, Identity, Proof
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, NOW, make_node
from tests.support.decide_helpers import (
    GPU_POD,
    PASSED,
    SPEC,
    changed,
    make_view,
    ready_view,
    settled,
)

GATED = {"preflight:NoSchedule", "preflight:NoExecute"}
SHUT = {"preflight:NoSchedule"}
JOIN, GATE, EXPIRE, TEST = Budget.JOIN, Budget.GATE, Budget.EXPIRE, Budget.TEST
LATER = "2026-11-21T18:00:00Z"
ASK = Ask("ann", "fan swap", "2026-11-21T11:59:00Z", LATER)
FAILED = replace(PASSED, verdict=Verdict.FAIL, sequence=6)
UNSURE = replace(PASSED, verdict=Verdict.INCONCLUSIVE, sequence=6, finished_at="2026-11-21T11:30:00Z")
AGAIN = replace(PASSED, sequence=6)
OLD = NOW + timedelta(days=8)
NOTICE = Maintenance("azure", "scheduled", "2026-11-21T12:30:00Z", "2026-11-21T13:30:00Z", "Reboot")


def fatal(code: str) -> Statement:
    """A revocation by the agent."""
    return replace(FAILED, level="watch", code=code, message=f"{code} was seen")


def asks(**spec: Any) -> View:
    return ready_view(spec=spec)


def agent(**note: Any) -> AgentNote:
    return AgentNote(BOOT, **note)


@dataclass(frozen=True)
class Case:
    """A situation, and what it comes to; `taints` are those of the admitter after it."""

    view: Callable[[], View]
    state: str
    code: str
    taints: set[str]
    needs: Budget | None = None
    verdict: str = "inconclusive"
    condition: str = "Unknown"
    ready: bool = False
    evict: tuple[str, ...] = ()
    leave: bool = False
    asked: bool = False
    now: datetime = NOW


def works(code: str, taints: set[str] = frozenset(), needs: Budget | None = None, **more: Any) -> dict[str, Any]:  # type: ignore[assignment]
    """The columns of a node that may take work."""
    expected = {"state": "ready", "code": code, "taints": set(taints), "needs": needs, "verdict": "pass"}
    return {**expected, "condition": "True", "ready": True, **more}


def in_test(code: str, needs: Budget | None = TEST) -> dict[str, Any]:
    return works(code, {"testing:NoSchedule"}, needs, state="testing", asked=True)


def short_of(gpus: int, **more: Any) -> View:
    return ready_view(spec={"hardware": Hardware(8)}, capacity="8", allocatable=str(gpus), **more)


CASES: dict[str, Case] = {
    # A node that was never admitted.
    "a pass of this boot": Case(make_view, **works("PASS", needs=JOIN)),
    "no evidence yet": Case(lambda: make_view(None), "new", "EVIDENCE_MISSING", GATED),
    "no host key": Case(
        lambda: make_view(spec=replace(SPEC, identity=Identity())), "suspect", "HOST_KEY_UNKNOWN", GATED
    ),
    "a wrong signature": Case(
        lambda: make_view(evidence=Evidence(None, {}, "EVIDENCE_SIGNATURE", "bad")),
        "suspect", "EVIDENCE_SIGNATURE", GATED,
    ),
    "another machine's evidence": Case(
        lambda: make_view(replace(PASSED, machine_id="b" * 32)), "suspect", "EVIDENCE_NODE", GATED
    ),
    "another node's evidence": Case(
        lambda: make_view(replace(PASSED, node="gpu-2")), "suspect", "EVIDENCE_NODE", GATED
    ),
    "a machine that is not the pinned one": Case(
        lambda: make_view(spec=replace(SPEC, identity=Identity(SPEC.identity.host_key, "c" * 32))),
        "suspect", "EVIDENCE_NODE", GATED,
    ),
    "a machine that kubelet does not report": Case(
        lambda: make_view(
            replace(PASSED, machine_id="b" * 32), spec=replace(SPEC, identity=Identity(SPEC.identity.host_key))
        ),
        "suspect", "EVIDENCE_NODE", GATED,
    ),
    "evidence of another boot": Case(
        lambda: make_view(replace(PASSED, boot_id=BOOT2)), "testing", "EVIDENCE_BOOT", GATED
    ),
    "a silent agent": Case(lambda: make_view(agent=None), "testing", "AGENT_SILENT", GATED),
    "an agent of another boot": Case(lambda: make_view(agent=AgentNote(BOOT2)), "testing", "AGENT_BOOT", GATED),
    "a fail": Case(
        lambda: make_view(FAILED), "quarantined", "FAIL", {*GATED, "quarantine=FAIL:NoSchedule"},
        verdict="fail", condition="False",
    ),
    "an inconclusive run": Case(lambda: make_view(UNSURE), "suspect", "INCONCLUSIVE", GATED, asked=True),
    "simulated hardware": Case(
        lambda: make_view(replace(PASSED, simulated=True)), "suspect", "EVIDENCE_SIMULATED", GATED
    ),
    "evidence of tomorrow": Case(
        lambda: make_view(replace(PASSED, finished_at="2026-11-21T12:05:00Z")), "suspect", "EVIDENCE_SKEW", GATED
    ),
    "old evidence": Case(
        lambda: make_view(replace(PASSED, finished_at="2026-11-01T00:00:00Z")),
        "expiring", "EVIDENCE_EXPIRED", GATED, verdict="expired", asked=True,
    ),
    "a pass of a lower level": Case(
        lambda: make_view(replace(PASSED, level="quick")), "testing", "EVIDENCE_LEVEL", GATED, asked=True
    ),
    "kubelet has not reported": Case(
        lambda: make_view(node=make_node(boot="")), "testing", "NODE_UNREPORTED", GATED
    ),
    "kubelet has stopped reporting": Case(
        lambda: make_view(node=make_node(ready="Unknown")), "testing", "NODE_UNKNOWN", GATED
    ),
    "not ready for other reasons": Case(
        # Its own not-ready taint keeps pods away; the evidence is as good.
        lambda: make_view(node=make_node(ready="False")), **works("PASS", needs=JOIN)
    ),
    "held before it was let in": Case(
        lambda: make_view(spec=replace(SPEC, hold=ASK)), "held", "HELD_BY_PERSON", GATED, verdict="pass"
    ),
    # A node at work.
    "nothing new": Case(ready_view, **works("PASS")),
    "a newer pass": Case(lambda: ready_view(statement=AGAIN), **works("PASS")),
    "a fault in a test": Case(
        lambda: ready_view(statement=replace(FAILED, code="GEMM_MISMATCH"), pods=(GPU_POD,)),
        "quarantined", "GEMM_MISMATCH", {*SHUT, "quarantine=GEMM_MISMATCH:NoSchedule"}, GATE, "fail", "False",
        evict=("train-0",), leave=True,
    ),
    "a fatal XID": Case(
        lambda: ready_view(statement=fatal("XID_FATAL"), pods=(GPU_POD,)),
        "quarantined", "XID_FATAL", {*SHUT, "quarantine=XID_FATAL:NoSchedule", "quarantine=XID_FATAL:NoExecute"},
        GATE, "fail", "False", evict=("train-0",), leave=True,
    ),
    "a fatal XID under a pod that holds": Case(
        lambda: ready_view(statement=fatal("XID_FATAL"), pods=(replace(GPU_POD, hold_until=LATER),)),
        "quarantined", "XID_FATAL", {*SHUT, "quarantine=XID_FATAL:NoSchedule"}, GATE, "fail", "False", leave=True,
    ),
    "a fail of the boot before": Case(
        lambda: changed(settled(ready_view(statement=FAILED)), boot=BOOT2, agent=AgentNote(BOOT2)),
        "testing", "EVIDENCE_BOOT", GATED,
    ),
    "an inconclusive test": Case(
        lambda: ready_view(statement=UNSURE), "suspect", "INCONCLUSIVE", SHUT, GATE, asked=True
    ),
    # Its gate keeps kubelet down, which never reports this boot: nobody else would ask for a test.
    "an inconclusive burn-in at boot": Case(
        lambda: ready_view(statement=replace(UNSURE, boot_id=BOOT2), agent=AgentNote(BOOT2), kubelet="Unknown"),
        "suspect", "INCONCLUSIVE", GATED, asked=True,
    ),
    "an inconclusive burn-in at boot, and pods of the boot before": Case(
        lambda: ready_view(
            statement=replace(UNSURE, boot_id=BOOT2), agent=AgentNote(BOOT2), kubelet="Unknown", pods=(GPU_POD,)
        ),
        "suspect", "INCONCLUSIVE", GATED, asked=True,
    ),
    "an inconclusive burn-in of a boot that the agent does not name": Case(
        lambda: ready_view(statement=replace(UNSURE, boot_id=BOOT2), kubelet="Unknown"),
        "testing", "NODE_UNKNOWN", GATED,
    ),
    "an inconclusive test, and busy": Case(
        lambda: ready_view(statement=UNSURE, pods=(GPU_POD,)), "suspect", "INCONCLUSIVE", SHUT, GATE
    ),
    "an older statement": Case(
        lambda: ready_view(statement=replace(PASSED, sequence=4)), "suspect", "EVIDENCE_REPLAYED", SHUT, GATE
    ),
    "the same number with another report": Case(
        lambda: ready_view(statement=replace(PASSED, report_sha256="9" * 64)),
        "suspect", "EVIDENCE_REPLAYED", SHUT, GATE,
    ),
    "a spoiled annotation": Case(
        lambda: ready_view(evidence=Evidence(None, {}, "EVIDENCE_MALFORMED", "no JSON")),
        "suspect", "EVIDENCE_MALFORMED", SHUT, GATE,
    ),
    "a removed annotation": Case(
        lambda: ready_view(evidence=Evidence()), "suspect", "EVIDENCE_MISSING", SHUT, GATE
    ),
    "an agent that falls silent": Case(lambda: ready_view(agent=None), "suspect", "AGENT_SILENT", SHUT, GATE),
    "kubelet stops": Case(lambda: ready_view(kubelet="Unknown"), "suspect", "NODE_UNKNOWN", SHUT, GATE),
    "a short reboot, which the agent tells": Case(
        lambda: ready_view(agent=AgentNote(BOOT2)), "testing", "REBOOTED", GATED
    ),
    "a reboot that the evidence tells": Case(
        lambda: ready_view(statement=replace(AGAIN, boot_id=BOOT2)), "testing", "EVIDENCE_BOOT", GATED
    ),
    "a reboot that kubelet tells": Case(
        lambda: ready_view(boot=BOOT2, agent=AgentNote(BOOT2)), "testing", "EVIDENCE_BOOT", GATED
    ),
    "a reboot that kubelet alone tells": Case(
        lambda: ready_view(boot=BOOT2, agent=None, evidence=Evidence()), "testing", "EVIDENCE_MISSING", GATED
    ),
    "a reboot and its pass": Case(
        lambda: changed(
            settled(ready_view(agent=AgentNote(BOOT2))), boot=BOOT2, statement=replace(AGAIN, boot_id=BOOT2)
        ),
        **works("PASS", needs=JOIN),
    ),
    "another driver in this boot": Case(
        lambda: ready_view(statement=replace(AGAIN, hardware_sha256="4" * 64)),
        "suspect", "HARDWARE_CHANGED", SHUT, GATE, asked=True,
    ),
    "the agent finds another driver": Case(
        lambda: ready_view(statement=fatal("HARDWARE_CHANGED")), "suspect", "HARDWARE_CHANGED", SHUT, GATE, asked=True
    ),
    "GPUs that kubelet does not offer, for a moment": Case(lambda: short_of(7), **works("GPUS_MISSING")),
    "GPUs that kubelet does not offer": Case(
        lambda: settled(short_of(7)), "suspect", "GPUS_MISSING", SHUT, GATE, asked=True,
        now=NOW + timedelta(seconds=121),
    ),
    "no GPU is counted where there is no device plugin": Case(
        lambda: ready_view(spec={"hardware": Hardware(8)}), **works("PASS")
    ),
    "all GPUs are there": Case(lambda: short_of(8), **works("PASS")),
    # Old proof.
    "old proof of an idle node": Case(
        ready_view, "expiring", "EVIDENCE_EXPIRED", SHUT, EXPIRE, "expired", asked=True, now=OLD
    ),
    "old proof of a busy node": Case(
        lambda: ready_view(pods=(GPU_POD,)), **works("EVIDENCE_EXPIRED", verdict="expired"), now=OLD
    ),
    "a higher level is asked for": Case(
        lambda: ready_view(spec={"evidence": Proof("extended")}),
        "testing", "EVIDENCE_LEVEL", SHUT, EXPIRE, asked=True,
    ),
    "a quick test while the proof is young": Case(
        lambda: ready_view(statement=replace(AGAIN, level="quick")), **works("PASS")
    ),
    # What people ask for.
    "a hold": Case(lambda: asks(hold=ASK), "held", "HELD_BY_PERSON", SHUT, verdict="pass"),
    "a hold that is over": Case(lambda: asks(hold=replace(ASK, until="2026-11-21T11:59:30Z")), **works("PASS")),
    "a hold without an end that can be read": Case(
        lambda: asks(hold=replace(ASK, until="soon")), "held", "HELD_BY_PERSON", SHUT, verdict="pass"
    ),
    "a quarantine": Case(
        lambda: changed(asks(quarantine=ASK), pods=(GPU_POD,)),
        "quarantined", "QUARANTINED_BY_PERSON", {*SHUT, "quarantine=QUARANTINED_BY_PERSON:NoSchedule"},
        verdict="pass", evict=("train-0",), leave=True,
    ),
    "a hold of a faulty node": Case(
        lambda: changed(asks(hold=ASK), statement=FAILED),
        "quarantined", "FAIL", {*SHUT, "quarantine=FAIL:NoSchedule"}, GATE, "fail", "False",
    ),
    "a repair": Case(lambda: asks(repair=ASK), "repairing", "REPAIRING", SHUT),
    "a repair of a faulty node": Case(
        lambda: changed(settled(ready_view(statement=FAILED)), spec={"repair": ASK}),
        "repairing", "REPAIRING", SHUT,
    ),
    "a test that a person asks for": Case(lambda: asks(retest=ASK), **in_test("RETEST_ASKED", None)),
    "a test that a person asks for, and busy": Case(
        lambda: changed(asks(retest=ASK), pods=(GPU_POD,)), **works("PASS")
    ),
    "a test of a faulty node that a person asks for": Case(
        lambda: changed(settled(ready_view(statement=FAILED)), spec={"retest": ASK}),
        "quarantined", "FAIL", {*SHUT, "quarantine=FAIL:NoSchedule"}, None, "fail", "False", asked=True,
    ),
    # Tests by the admitter itself.
    "its turn": Case(lambda: ready_view(test="quick"), **in_test("TEST_DUE")),
    "its turn, and busy": Case(lambda: ready_view(test="quick", pods=(GPU_POD,)), **works("PASS")),
    "its turn, and held": Case(
        lambda: changed(asks(hold=ASK), test="quick"), "held", "HELD_BY_PERSON", SHUT, verdict="pass"
    ),
    "the agent warns": Case(
        lambda: ready_view(agent=agent(warnings=(Warned("XID_SUSPECT", "xid 13", "2026-11-21T11:58:00Z"),))),
        **in_test("AGENT_WARNED"),
    ),
    "the agent warned before the last test": Case(
        lambda: ready_view(agent=agent(warnings=(Warned("XID_SUSPECT", "xid 13", "2026-11-21T10:58:00Z"),))),
        **works("PASS"),
    ),
    "the agent warns, and busy": Case(
        lambda: ready_view(
            agent=agent(warnings=(Warned("XID_SUSPECT", "xid 13", "2026-11-21T11:58:00Z"),)), pods=(GPU_POD,)
        ),
        **works("AGENT_WARNED"),
    ),
    # Maintenance.
    "a notice for the next hour": Case(
        lambda: ready_view(agent=agent(maintenance=NOTICE)), **works("MAINTENANCE", {"maintenance:NoSchedule"})
    ),
    "a notice for tomorrow": Case(
        lambda: ready_view(agent=agent(maintenance=replace(NOTICE, not_before="2026-11-22T12:30:00Z", not_after=""))),
        **works("PASS"),
    ),
    "a window of the calendar": Case(
        lambda: ready_view(calendar=(replace(NOTICE, provider="calendar", state="started"),)),
        **works("MAINTENANCE", {"maintenance:NoSchedule"}),
    ),
    "the window is over": Case(
        lambda: settled(ready_view(agent=agent(maintenance=NOTICE))),
        **in_test("MAINTENANCE_OVER"), now=NOW + timedelta(hours=2),
    ),
    "its turn, in a window": Case(
        lambda: ready_view(agent=agent(maintenance=NOTICE), test="quick"),
        **works("MAINTENANCE", {"maintenance:NoSchedule"}),
    ),
    "its turn, and nobody knows of maintenance": Case(
        lambda: ready_view(agent=agent(maintenance=Maintenance("azure", "unknown")), test="quick"), **works("PASS")
    ),
    "a quarantine in a window": Case(
        lambda: changed(asks(quarantine=ASK), pods=(GPU_POD,), agent=agent(maintenance=NOTICE)),
        "quarantined", "QUARANTINED_BY_PERSON",
        {*SHUT, "quarantine=QUARANTINED_BY_PERSON:NoSchedule", "maintenance:NoSchedule"}, verdict="pass",
    ),
    "first admission in a window": Case(
        lambda: make_view(agent=agent(maintenance=NOTICE)),
        **works("MAINTENANCE", {"maintenance:NoSchedule"}, JOIN),
    ),
}  # fmt: skip
