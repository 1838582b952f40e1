"""What a node's own facts say of it: boots, evidence, hardware. Every doubt holds it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpu_burnin.admission.decide.nodes import boot_id, condition, gated
from gpu_burnin.admission.decide.offered import GPUS_MISSING, is_named, missing_gpus
from gpu_burnin.admission.decide.remember import busy, proof_of, rank
from gpu_burnin.admission.decide.times import LONG_AGO, later, stamp, when
from gpu_burnin.admission.decide.watched import AGENT_SILENT, unwatched
from gpu_burnin.admission.decide.words import active, code_of, fault, sentence
from gpu_burnin.admission.view import Evidence, Node, Rules, View
from gpu_burnin.api.evidence import MAX_SKEW_S, Expectation, Statement, refusal
from gpu_burnin.api.record import Spec, State, Status
from gpu_burnin.system.hardware_identity import UNNAMED, difference
from gpu_burnin.types import JSON, Verdict

# Evidence of nodes tested together must not expire together.
TTL_JITTER = 0.1
# A boot that stays inconclusive after so many tests is a person's.
MOST_BOOT_TESTS = 2
HARDWARE_CHANGED = "HARDWARE_CHANGED"
LEDGER_RESTORED = "LEDGER_RESTORED"
# What ends by itself in a burn-in that the node starts at its boot.
_AWAITED = frozenset({"EVIDENCE_MISSING", "EVIDENCE_BOOT", "REBOOTED"})


class VerdictLabel(StrEnum):
    """Values of the verdict label."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Judged:
    """What is true of a node: may it take work, and why (not).

    `rebooted`: nothing on it can still be running. `fault` is the code of a FAIL. `due`: fit, but its proof is old or
    of a lower level than asked for. `retest`: a test may clear it; `awaited`: it comes by itself. `expires`: when the
    proof ends.
    """

    state: State
    code: str
    message: str
    verdict: VerdictLabel = VerdictLabel.INCONCLUSIVE
    fit: bool = False
    rebooted: bool = False
    fault: str = ""
    due: bool = False
    retest: bool = False
    awaited: bool = False
    expires: datetime | None = None


def node_ttl_s(name: str, ttl_s: float) -> float:
    """The node's own time to live: up to 10 % shorter than `ttl_s`, the same at every call."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return ttl_s * (1 - TTL_JITTER * share)


@dataclass(frozen=True)
class Facts:
    """One look at a node: the record's status already knows the evidence. `unanswered` is a request without answer.

    `under_test`: a request of ours is on the Node, and may be answered yet; `asked`: there is one in the record.
    """

    view: View
    node: Node
    spec: Spec
    status: Status
    evidence: Evidence
    rules: Rules
    now: datetime
    unanswered: str = ""
    under_test: bool = False
    asked: bool = False

    @property
    def boot(self) -> str:
        """The boot that kubelet reports."""
        return boot_id(self.node)

    @property
    def tested(self) -> Mapping[str, JSON]:
        """The identity of the hardware that its evidence is of; while that is withdrawn, of what it was let in with."""
        accepted = self.status.accepted
        return self.evidence.hardware or (accepted.hardware if accepted is not None else {})

    @property
    def statement(self) -> Statement | None:
        """What the node proved to have said, or None."""
        return self.evidence.statement if self.evidence.code is None else None

    @property
    def agent_boot(self) -> str:
        """The boot that the agent names, "" where it says nothing."""
        return self.view.agent.boot_id if self.view.agent is not None else ""

    @property
    def rebooted(self) -> bool:
        """Whether one of the voices is of another boot than kubelet's.

        The gate keeps a new boot's status out until the node is tainted, so evidence or agent may know of it first.
        """
        accepted = self.status.accepted
        voices = (
            self.agent_boot,
            self.statement.boot_id if self.statement is not None else "",
            accepted.boot_id if accepted is not None else "",
        )
        return bool(self.boot) and any(voice and voice != self.boot for voice in voices)

    @property
    def undecided_boot(self) -> bool:
        """Whether the burn-in of a boot that kubelet has not reported was inconclusive: its gate keeps kubelet down."""
        statement = self.statement
        return (
            statement is not None
            and statement.verdict is Verdict.INCONCLUSIVE
            and statement.boot_id == self.agent_boot != self.boot
        )

    @property
    def boot_tests(self) -> int:
        """How often this undecided boot was tested, as the admitter asked."""
        tests = self.status.boot_tests
        return tests.asked if tests is not None and tests.boot_id == self.agent_boot else 0

    @property
    def busy(self) -> bool:
        """Whether pods with GPUs are at work. Those of a boot that is over are not, though nobody has ended them."""
        return busy(self.view.pods) and not self.undecided_boot

    @property
    def admitted_in_this_boot(self) -> bool:
        """Whether its evidence was accepted in the boot that kubelet reports."""
        return self.status.accepted is not None and self.status.accepted.boot_id == self.boot


def judge(facts: Facts) -> Judged:
    """Judge a node. A FAIL is named first, since it says most."""
    return (
        _failed(facts)
        or _revoking(facts)
        or _not_here(facts)
        or _between(facts)
        or _not_proven(facts)
        or _proven(facts)
    )


def repaired_at(status: Status) -> datetime | None:
    """When the node last went into repair, as far as the record goes back."""
    found = next((t for t in reversed(status.transitions) if t.after == State.REPAIRING), None)
    return when(found.at) if found is not None else None


def _failed(facts: Facts) -> Judged | None:
    statement, name = facts.statement, facts.view.name
    if statement is None or statement.verdict is not Verdict.FAIL:
        return None
    # Set aside while something is done about it. A repair that ended without a newer test has cleared nothing.
    if active(facts.spec.repair, facts.now) is not None and _before_repair(facts, statement):
        return None
    boots = {facts.boot, facts.agent_boot} - {""}
    if boots and statement.boot_id not in boots:
        return None
    code = fault(statement)
    finding = sentence(statement.message) or f"burn-in run {statement.sequence} failed"
    if rank(statement.level) < 0:
        finding = f"{finding.rstrip('.')}, seen by its agent at {sentence(statement.finished_at)}"
        if code == HARDWARE_CHANGED:
            return _held(facts, State.SUSPECT, code, f"{name}: {finding}", retest=True)
    return Judged(
        State.QUARANTINED,
        code,
        f"{name}: {finding}",
        VerdictLabel.FAIL,
        rebooted=facts.rebooted,
        fault=code,
    )


def _revoking(facts: Facts) -> Judged | None:
    """Its agent takes the admission back and has not signed it yet, since a burn-in (a test of ours) is under way.

    Unsigned, so it only keeps new work away; the statement that follows says how bad it is.
    """
    agent = facts.view.agent
    if agent is None or agent.revoking is None or agent.boot_id != facts.boot:
        return None
    code, finding = code_of(agent.revoking.code, str(Verdict.FAIL)), sentence(agent.revoking.message)
    return _held(facts, State.SUSPECT, code, f"{facts.view.name}: its agent takes its admission back: {finding}")


def _not_here(facts: Facts) -> Judged | None:
    """kubelet does not say how the node is."""
    reported, name = condition(facts.node, "Ready"), facts.view.name
    if facts.undecided_boot:
        return _undecided(facts)
    if not facts.boot or reported is None:
        state = State.SUSPECT if facts.admitted_in_this_boot else _waiting(facts)
        return _held(facts, state, "NODE_UNREPORTED", f"{name}: kubelet has not reported the node's status yet")
    if reported.get("status") == "Unknown":
        state = State.SUSPECT if facts.admitted_in_this_boot and not facts.rebooted else State.TESTING
        message = f"{name}: kubelet has stopped reporting, it may have booted again"
        return _held(facts, state, "NODE_UNKNOWN", message)
    return None


def _undecided(facts: Facts) -> Judged:
    """Nothing was found, and not enough was seen: tested again, since no kubelet will ever report this boot else."""
    statement, name = facts.statement, facts.view.name
    assert statement is not None
    if facts.unanswered:
        return _held(facts, State.SUSPECT, "REQUEST_UNANSWERED", f"{name}: {facts.unanswered}")
    finding = sentence(statement.message) or f"burn-in run {statement.sequence} was inconclusive"
    if facts.boot_tests >= MOST_BOOT_TESTS and not facts.asked:
        message = f"{name}: tested {facts.boot_tests} times more since its boot, and still not decided: {finding}"
        return _held(facts, State.SUSPECT, "BOOT_UNDECIDED", message)
    return _held(facts, State.SUSPECT, fault(statement), f"{name}: after its boot: {finding}", retest=True)


def _between(facts: Facts) -> Judged | None:
    """Under test at work: what the node had published is withdrawn while the newer run goes on."""
    withdrawn = facts.evidence.statement is None and facts.evidence.code is None
    same_boot = facts.admitted_in_this_boot and facts.agent_boot == facts.boot
    if not (facts.under_test and withdrawn and same_boot) or gated(facts.node, facts.rules.names):
        return None
    status = facts.status
    return Judged(State.TESTING, status.code, status.message, VerdictLabel.PASS, fit=True)


def _not_proven(facts: Facts) -> Judged | None:
    """There is no evidence that can be judged: none, refused, or not of this boot."""
    name, statement, boot = facts.view.name, facts.statement, facts.boot
    if not facts.spec.identity.host_key:
        message = f"{name}: its NodeAdmission names no host key; probe the host and run site.yml"
        return _held(facts, _doubt(facts), "HOST_KEY_UNKNOWN", message)
    if facts.agent_boot and facts.agent_boot != boot and facts.admitted_in_this_boot:
        message = f"{name}: it has booted again (boot {sentence(facts.agent_boot)}), its status is of boot {boot}"
        return _held(facts, State.TESTING, "REBOOTED", message)
    if statement is None:
        if facts.evidence.code is not None:
            message = sentence(facts.evidence.message or f"{name}: its evidence is refused")
            return _held(facts, State.SUSPECT, facts.evidence.code, message)
        state = State.SUSPECT if facts.admitted_in_this_boot else _waiting(facts)
        return _held(facts, state, "EVIDENCE_MISSING", f"{name}: no evidence of a burn-in was published")
    if statement.boot_id != boot:
        message = f"{name}: evidence is of boot {statement.boot_id}, its status of boot {boot}"
        return _held(facts, State.TESTING, "EVIDENCE_BOOT", message)
    if not facts.agent_boot:
        message = f"{name}: its agent has said nothing that can be read, so nobody watches its GPUs"
        state = State.SUSPECT if facts.admitted_in_this_boot else _waiting(facts)
        return _held(facts, state, AGENT_SILENT, message)
    if facts.agent_boot != boot:
        message = f"{name}: its agent speaks of boot {sentence(facts.agent_boot)}, its status is of boot {boot}"
        return _held(facts, State.TESTING, "AGENT_BOOT", message)
    silence = unwatched(facts.view, facts.node, facts.status, facts.rules)
    return _held(facts, *silence) if silence is not None else None


def _proven(facts: Facts) -> Judged:
    """There is evidence of this boot: what it is worth."""
    name, statement, spec = facts.view.name, facts.statement, facts.spec
    assert statement is not None
    if _before_repair(facts, statement):
        return _held(facts, State.TESTING, "REPAIRED", f"{name}: not tested since it was in repair", retest=True)
    if facts.unanswered:
        return _held(facts, State.SUSPECT, "REQUEST_UNANSWERED", f"{name}: {facts.unanswered}")
    if statement.verdict is not Verdict.PASS:
        finding = sentence(statement.message) or f"burn-in run {statement.sequence} was inconclusive"
        return _held(facts, State.SUSPECT, fault(statement), f"{name}: {finding}", retest=True)
    expect = Expectation(ttl_s=None, allow_simulated=spec.identity.allow_simulated)
    refused = refusal(statement, expect, facts.now)
    if refused is not None:
        code, message = refused
        if code == "EVIDENCE_SKEW":
            # Without the seconds, which would make another message, and a write, at every pass.
            message = f"{name}: the evidence is of {statement.finished_at}, in the future; check the clocks"
        return _held(facts, State.SUSPECT, code, message)
    if changed := _changed(facts, statement):
        return _held(facts, State.SUSPECT, HARDWARE_CHANGED, f"{name}: {changed}", retest=True)
    if (owed := facts.status.power_cycle) is not None:
        message = (
            f"{name}: {owed.code} asked for a power cycle at {owed.since}, and a PASS after a reboot is none: power "
            f"the machine off and on, then confirm it: muster node retest {name} --power-cycled --reason REASON"
        )
        return _held(facts, State.SUSPECT, "POWER_CYCLE_OWED", message)
    return _missing(facts) or _due(facts, statement)


def _due(facts: Facts, statement: Statement) -> Judged:
    """It passed: recently, and at the level that is asked for?"""
    name, asked = facts.view.name, facts.spec.evidence
    proof = proof_of(facts.status, asked.level)
    message = f"{name}: burn-in run {statement.sequence} ({statement.level}) passed in boot {facts.boot}"
    if proof is None:
        low = f"{name}: burn-in run {statement.sequence} passed at level {statement.level}, not at {asked.level}"
        return Judged(
            State.TESTING,
            "EVIDENCE_LEVEL",
            low,
            fit=not gated(facts.node, facts.rules.names),
            rebooted=facts.rebooted,
            due=True,
            retest=True,
        )
    # A newer run that says it was finished before an older one has a clock that was set: the earlier time counts.
    proof = min(proof, statement.finished)
    expires = later(proof, node_ttl_s(name, asked.max_age_s))
    if facts.now > expires:
        old = f"{name}: the proof of level {asked.level} is of {stamp(proof)}, too old since {stamp(expires)}"
        return Judged(
            State.EXPIRING,
            "EVIDENCE_EXPIRED",
            old,
            VerdictLabel.EXPIRED,
            fit=not gated(facts.node, facts.rules.names),
            rebooted=facts.rebooted,
            due=True,
            retest=True,
            expires=expires,
        )
    return Judged(State.READY, "PASS", message, VerdictLabel.PASS, True, facts.rebooted, expires=expires)


def _changed(facts: Facts, statement: Statement) -> str:
    """What of the hardware is not as it was admitted in this boot, unless it was tested since that was told.

    What a repair or another driver has changed is meant; evidence of the time before it does not come here.
    """
    old = facts.status.accepted
    if old is None or old.boot_id != facts.boot or old.hardware_sha256 == statement.hardware_sha256:
        return ""
    admitted = when(old.admitted_at) or LONG_AGO
    repaired = repaired_at(facts.status)
    if repaired is not None and repaired >= admitted:
        return ""
    reported = (when(t.at) for t in facts.status.transitions if t.code == HARDWARE_CHANGED)
    first = min((at for at in reported if at is not None and at >= admitted), default=None)
    # Two clocks: a run that was finished as much later as they may differ began after it, or shortly before.
    if first is not None and statement.finished > later(first, MAX_SKEW_S):
        return ""
    # The hashes differ: never an empty text, which would mean that nothing has changed.
    return difference(old.hardware, facts.evidence.hardware) or UNNAMED


def _missing(facts: Facts) -> Judged | None:
    """GPUs that are not there for longer than a device plugin takes to start again."""
    reported = facts.status.code == GPUS_MISSING
    short = missing_gpus(facts.node, facts.spec.hardware, facts.tested)
    since = when(facts.status.since) if reported else None
    over = since is not None and facts.now >= later(since, facts.rules.gpus_grace_s)
    if not short or not (over or gated(facts.node, facts.rules.names)):
        return None
    # At the start of a boot kubelet offers nothing until the plugin has registered, which says nothing of the GPUs; nor
    # does one that never does.
    doubted = reported and facts.status.state is State.SUSPECT
    starting = not (over or doubted or facts.admitted_in_this_boot)
    named = is_named(facts.node, facts.spec.hardware, facts.tested)
    state = _waiting(facts) if starting else State.SUSPECT
    return _held(facts, state, GPUS_MISSING, f"{facts.view.name}: {short}", retest=named and not starting)


def _before_repair(facts: Facts, statement: Statement) -> bool:
    """Whether the statement is of the time before the newest repair, one that begins now included."""
    begins = active(facts.spec.repair, facts.now) is not None and facts.status.state is not State.REPAIRING
    repaired = facts.now if begins else repaired_at(facts.status)
    return repaired is not None and repaired > statement.finished


def _doubt(facts: Facts) -> State:
    return State.SUSPECT if facts.statement is not None or facts.admitted_in_this_boot else _waiting(facts)


def _waiting(facts: Facts) -> State:
    return State.NEW if facts.status.last_test is None and facts.statement is None else State.TESTING


def _held(facts: Facts, state: State, code: str, message: str, *, retest: bool = False) -> Judged:
    awaited = code in _AWAITED
    return Judged(state, code, message, rebooted=facts.rebooted, retest=retest or awaited, awaited=awaited)
