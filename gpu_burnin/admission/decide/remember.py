"""What a look at a node adds to the record, whatever is decided of it: evidence seen, proofs, use. Pure.

This is written even where a budget withholds a decision: evidence once seen is never forgotten for an older one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpu_burnin.admission.decide.nodes import machine_id
from gpu_burnin.admission.decide.owed import owed, settled
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import fault
from gpu_burnin.admission.view import Evidence, Pod, Rules, View
from gpu_burnin.api.evidence import MAX_SKEW_S, Statement
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.record import Spec, Status, Tested, Use
from gpu_burnin.api.run_files import MAX_SEQUENCE
from gpu_burnin.types import Verdict

_MOST_CHARS = 64
EVIDENCE_REPLAYED = "EVIDENCE_REPLAYED"


def remembered(view: View, status: Status, spec: Spec, evidence: Evidence, now: datetime, rules: Rules) -> Status:
    """The status with what was seen: `evidence` is what `examined` made of the view's."""
    if status.host_key != spec.identity.host_key:
        status = Status(
            state=status.state,
            since=status.since,
            code=status.code,
            message=status.message,
            host_key=spec.identity.host_key,
            use=status.use,
            retested=status.retested,
            power_cycle=status.power_cycle,
            confirmed=status.confirmed,
            transitions=status.transitions,
        )
    sequence, report = _highest(spec, status)
    status = replace(status, highest_sequence=sequence, highest_report_sha256=report)
    statement = evidence.statement
    if statement is not None and evidence.code is None:
        if statement.sequence > status.highest_sequence:
            status = replace(status, power_cycle=owed(status.power_cycle, evidence, now))
        status = _with_highest(status, statement)
        allowed = spec.identity.allow_simulated or not statement.simulated
        status = replace(status, proofs=_proofs(status, statement, now, allowed))
    debt = status.power_cycle
    if debt is not None and (not rules.confirm_power_cycle or settled(debt, spec, evidence)):
        status = replace(status, power_cycle=None)
    return replace(status, use=_use(status.use, view.pods, now)) if view.node is not None else status


def examined(view: View, spec: Spec, status: Status) -> Evidence:
    """The evidence after what the record alone can tell: its form, another machine, an older one than was seen."""
    evidence, name = view.evidence, view.name
    statement = evidence.statement
    if evidence.code is not None or statement is None:
        return evidence
    if why := _misshapen(statement):
        return Evidence(None, {}, "EVIDENCE_MALFORMED", f"{name}: the evidence statement cannot be read: {why}")
    pinned, reported = spec.identity.machine_id, _machine(view)
    for machine in (pinned, reported):
        if statement.node != name or (machine and statement.machine_id != machine):
            message = (
                f"{name}: the evidence is of node {statement.node}, machine {statement.machine_id}, not of this "
                f"node's machine {machine or reported}"
            )
            return replace(evidence, code="EVIDENCE_NODE", message=message)
    seen, report = _highest(spec, status)
    same = statement.sequence == seen and statement.report_sha256 == report
    if statement.sequence <= seen and not same:
        message = (
            f"{name}: the evidence has sequence {statement.sequence}, but {seen} of this node has been seen "
            f"with another report; ask for a test, whose number begins above {seen}: muster node retest {name} "
            "--reason REASON"
        )
        return replace(evidence, code=EVIDENCE_REPLAYED, message=message)
    return evidence


def _highest(spec: Spec, status: Status) -> tuple[int, str]:
    """The highest sequence that was ever seen of the pinned key, by this record or before it, and its report."""
    carried = spec.identity.carried_sequence, spec.identity.carried_report_sha256
    if status.host_key != spec.identity.host_key or carried[0] > status.highest_sequence:
        return carried
    return status.highest_sequence, status.highest_report_sha256


def rank(level: str) -> int:
    """How much a level looks at; -1 for one that is none."""
    return list(LEVELS).index(level) if level in LEVELS else -1


def proof_of(status: Status, level: str) -> datetime | None:
    """When the newest PASS of this level, or of a higher one, was finished."""
    times = (when(text) for name, text in status.proofs.items() if rank(name) >= max(rank(level), 0))
    return max((time for time in times if time is not None), default=None)


def busy(pods: tuple[Pod, ...]) -> bool:
    """Whether a pod holds GPUs."""
    return any(pod.gpus > 0 and not pod.ended for pod in pods)


def _misshapen(statement: Statement) -> str:
    """Why a signed statement is still none that can be judged, or ""."""
    if not 1 <= statement.sequence <= MAX_SEQUENCE:
        return "its sequence is not between 1 and 2^53"
    for name in ("machine_id", "boot_id", "level", "finished_at"):
        text = getattr(statement, name)
        if len(text) > _MOST_CHARS or not text.isprintable():
            return f"its {name} is not a line of at most {_MOST_CHARS} characters"
    if statement.verdict is Verdict.PASS and rank(statement.level) < 0:
        return "its level is none that a run can pass"
    return "" if when(statement.finished_at) is not None else "its finished_at is not a time"


def _machine(view: View) -> str:
    return machine_id(view.node) if view.node is not None else ""


def _with_highest(status: Status, statement: Statement) -> Status:
    if statement.sequence <= status.highest_sequence:
        return status
    seen = replace(
        status,
        highest_sequence=statement.sequence,
        highest_report_sha256=statement.report_sha256,
    )
    # A revocation by the agent is no test.
    if rank(statement.level) < 0:
        return seen
    verdict, level, finished = str(statement.verdict), statement.level, statement.finished_at
    return replace(seen, last_test=Tested(statement.sequence, level, verdict, finished, fault(statement)))


def _proofs(status: Status, statement: Statement, now: datetime, allowed: bool) -> dict[str, str]:
    """A FAIL ends all proofs, and so does other hardware: neither is made good by a lower level's PASS."""
    other = status.accepted is not None and status.accepted.hardware_sha256 != statement.hardware_sha256
    proofs = {} if statement.verdict is Verdict.FAIL or other else dict(status.proofs)
    timely = statement.finished <= later(now, MAX_SKEW_S)
    if allowed and timely and statement.verdict is Verdict.PASS and rank(statement.level) >= 0:
        old = when(proofs.get(statement.level, ""))
        if old is None or statement.finished > old:
            proofs[statement.level] = statement.finished_at
    return proofs


def _use(use: Use | None, pods: tuple[Pod, ...], now: datetime) -> Use:
    is_busy = busy(pods)
    since = when(use.since) if use is not None else None
    if use is None or since is None:
        return Use(stamp(now), stamp(now), is_busy)
    if use.busy == is_busy:
        return use
    lasted_s = max(0.0, (now - since).total_seconds())
    idle_s, busy_s = (0.0, lasted_s) if use.busy else (lasted_s, 0.0)
    return Use(use.observed_since, stamp(now), is_busy, use.idle_s + idle_s, use.busy_s + busy_s)
