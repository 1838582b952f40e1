"""The conditions that a node can be in, each by itself; which of them counts stands in order.py. Pure.

A condition takes for granted that none of those before it in the order holds. Of most there is a sentence alone, ""
where they do not hold: the order has their state and code.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.admission.decide.facts import Facts, rank
from gpu_burnin.admission.decide.finding import AGENT_SILENT, Finding, VerdictLabel, doubtful
from gpu_burnin.admission.decide.maintenance import ended_at
from gpu_burnin.admission.decide.offered import GPUS_MISSING, is_named
from gpu_burnin.admission.decide.times import LONG_AGO, later, stamp, when
from gpu_burnin.admission.decide.words import code_of, fault, sentence
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.evidence import MAX_SKEW_S, Expectation, Statement, refusal
from gpu_burnin.api.record import State
from gpu_burnin.system.hardware_identity import UNNAMED, difference
from gpu_burnin.types import Verdict

# A boot that stays inconclusive after so many tests is a person's.
MOST_BOOT_TESTS = 2
HARDWARE_CHANGED = "HARDWARE_CHANGED"


def failed(facts: Facts) -> Finding | None:
    """Its newest run failed, or its agent saw a fault: `fault` where it may be acted on. Without Node it stays so."""
    status, fail = facts.status, facts.fail
    if not facts.there and status.state is State.QUARANTINED and status.code != "QUARANTINED_BY_PERSON":
        return Finding(State.QUARANTINED, status.code, status.message, fault=status.code)
    if not facts.there or fail is None or changed_at_work(facts):
        return None
    code, message = fault(fail), f"{facts.view.name}: {_found(fail)}"
    acted_on = code if facts.denied is not Budget.GATE else ""
    return Finding(State.QUARANTINED, code, message, VerdictLabel.FAIL, fault=acted_on)


def changed_at_work(facts: Facts) -> str:
    """Its agent saw, and signed, that the hardware is another."""
    by_agent = facts.fail is not None and rank(facts.fail.level) < 0 and fault(facts.fail) == HARDWARE_CHANGED
    return _found(facts.signed) if by_agent else ""


def revoking(facts: Facts) -> Finding | None:
    """Its agent takes the admission back and has not signed it yet, since a burn-in (a test of ours) is under way.

    Unsigned, so it only keeps new work away; the statement that follows says how bad it is.
    """
    agent = facts.view.agent
    if agent is None or agent.revoking is None or agent.boot_id != facts.boot:
        return None
    message = f"{facts.view.name}: its agent takes its admission back: {sentence(agent.revoking.message)}"
    return doubtful(State.SUSPECT, code_of(agent.revoking.code, str(Verdict.FAIL)), message)


def undecided_for_good(facts: Facts) -> str:
    """An inconclusive boot that no test has decided."""
    if not facts.undecided_boot or facts.boot_tests < MOST_BOOT_TESTS or facts.test.request is not None:
        return ""
    tests = f"tested {facts.boot_tests} times more since its boot, and still not decided"
    return f"{tests}: {_inconclusive(facts)}"


def undecided(facts: Facts) -> Finding | None:
    """Nothing was found, and not enough was seen: tested again, since no kubelet will ever report this boot else."""
    if not facts.undecided_boot:
        return None
    message = f"{facts.view.name}: after its boot: {_inconclusive(facts)}"
    return doubtful(State.SUSPECT, fault(facts.signed), message, test=True)


def unreported(facts: Facts) -> bool:
    """kubelet has not said yet how the node is."""
    return not facts.boot or not facts.kubelet


def tested_at_work(facts: Facts) -> Finding | None:
    """Under test at work: what the node had published is withdrawn while the newer run goes on."""
    withdrawn = facts.evidence.statement is None and facts.evidence.code is None
    same_boot = facts.admitted_in_this_boot and facts.agent_boot == facts.boot
    if not (facts.under_test and withdrawn and same_boot) or facts.gated:
        return None
    return Finding(State.TESTING, facts.status.code, facts.status.message, VerdictLabel.PASS, fit=True)


def rebooted(facts: Facts) -> str:
    """Its agent knows of a boot that kubelet has not reported."""
    if facts.agent_boot in ("", facts.boot) or not facts.admitted_in_this_boot:
        return ""
    return f"it has booted again (boot {sentence(facts.agent_boot)}), its status is of boot {facts.boot}"


def refused(facts: Facts) -> Finding | None:
    """Its evidence is none of this node, or none at all."""
    evidence = facts.evidence
    if evidence.code is None:
        return None
    message = evidence.message or f"{facts.view.name}: its evidence is refused"
    return doubtful(State.SUSPECT, evidence.code, sentence(message))


def of_another_boot(facts: Facts) -> str:
    """Its evidence is of the boot before, or of one that kubelet has not reported."""
    boot = facts.signed.boot_id
    return f"evidence is of boot {boot}, its status of boot {facts.boot}" if boot != facts.boot else ""


def agent_of_another_boot(facts: Facts) -> str:
    """The note of its agent is of another boot."""
    words = f"its agent speaks of boot {sentence(facts.agent_boot)}, its status is of boot {facts.boot}"
    return words if facts.agent_boot != facts.boot else ""


def silent(facts: Facts) -> str:
    """Its agent's heartbeats have ended. The note is no sign of life: `gpu-burnin gate --cluster` writes it too."""
    heartbeat = facts.view.heartbeat
    if heartbeat is None:
        return ""
    # Once it was told, the node is in doubt until its agent is heard: to a new leader everybody's silence is new.
    doubted = facts.status.code == AGENT_SILENT and not heartbeat.fresh
    if not doubted and heartbeat.silent_s <= facts.rules.agent_silent_s:
        return ""
    return "its agent sends no heartbeat (it is off, hangs, or does not reach the API), so nobody watches its GPUs"


def unheard(facts: Facts) -> str:
    """A closed node, of whose agent no heartbeat has come in this boot."""
    heartbeat = facts.view.heartbeat
    if heartbeat is None or not facts.gated or (heartbeat.fresh and heartbeat.boot_id == facts.boot):
        return ""
    return "no heartbeat of its agent in this boot has come yet"


def inconclusive(facts: Facts) -> Finding | None:
    """Its newest run has not seen enough."""
    if facts.signed.verdict is Verdict.PASS:
        return None
    message = f"{facts.view.name}: {_inconclusive(facts)}"
    return doubtful(State.SUSPECT, fault(facts.signed), message, test=True)


def unacceptable(facts: Facts) -> Finding | None:
    """A pass that cannot be one: of the future, or of simulated hardware."""
    name, expect = facts.view.name, Expectation(ttl_s=None, allow_simulated=facts.spec.identity.allow_simulated)
    found = refusal(facts.signed, expect, facts.now)
    if found is None:
        return None
    code, message = found
    if code == "EVIDENCE_SKEW":
        # Without the seconds, which would make another message, and a write, at every pass.
        message = f"{name}: the evidence is of {facts.signed.finished_at}, in the future; check the clocks"
    return doubtful(State.SUSPECT, code, message)


def changed(facts: Facts) -> str:
    """The hardware is not as it was admitted in this boot, and was not tested since that was told.

    What a repair or another driver has changed is meant; evidence of the time before it does not come here.
    """
    old, statement = facts.status.accepted, facts.signed
    if old is None or old.boot_id != facts.boot or old.hardware_sha256 == statement.hardware_sha256:
        return ""
    admitted, repaired = when(old.admitted_at) or LONG_AGO, facts.repaired_at
    if repaired is not None and repaired >= admitted:
        return ""
    reported = (when(t.at) for t in facts.status.transitions if t.code == HARDWARE_CHANGED)
    first = min((at for at in reported if at is not None and at >= admitted), default=None)
    # Two clocks: a run that was finished as much later as they may differ began after it, or shortly before.
    if first is not None and statement.finished > later(first, MAX_SKEW_S):
        return ""
    # The hashes differ: never an empty text, which would mean that nothing has changed.
    return difference(old.hardware, facts.evidence.hardware) or UNNAMED


def owes_power_cycle(facts: Facts) -> str:
    """A fault asked for a power cycle, or a repair, that nobody has confirmed."""
    owed = facts.status.power_cycle
    if owed is None:
        return ""
    return (
        f"{owed.code} asked for {owed.what} at {owed.since}, and a PASS after a reboot is none: {owed.to_do}, then "
        f"confirm it: muster node retest {facts.view.name} --power-cycled --reason REASON"
    )


def lacks_gpus(facts: Facts) -> Finding | None:
    """GPUs that are not there for longer than a device plugin takes to start again."""
    reported = facts.status.code == GPUS_MISSING
    since = when(facts.status.since) if reported else None
    over = since is not None and facts.now >= later(since, facts.rules.gpus_grace_s)
    if not facts.missing_gpus or not (over or facts.gated):
        return None
    # At the start of a boot kubelet offers nothing until the plugin has registered, which says nothing of the GPUs; nor
    # does one that never does.
    doubted = reported and facts.status.state is State.SUSPECT
    starting = not (over or doubted or facts.admitted_in_this_boot)
    test = not starting and is_named(facts.node, facts.spec.hardware, facts.tested)
    state = new_or_testing(facts) if starting else State.SUSPECT
    return doubtful(state, GPUS_MISSING, f"{facts.view.name}: {facts.missing_gpus}", test=test)


def old_proof(facts: Facts) -> Finding | None:
    """It passed at a lower level than is asked for, or too long ago; a node at work goes on until it is tested."""
    name, asked, fit = facts.view.name, facts.spec.evidence, not facts.gated
    proof, expires = facts.proof, facts.expires
    if proof is None or expires is None:
        run = f"{name}: burn-in run {facts.signed.sequence} passed at level {facts.signed.level}, not at {asked.level}"
        return Finding(State.TESTING, "EVIDENCE_LEVEL", run, fit=fit, due=True, retest=True, by_schedule=fit)
    if facts.now <= expires:
        return None
    old = f"{name}: the proof of level {asked.level} is of {stamp(proof)}, too old since {stamp(expires)}"
    found = Finding(State.EXPIRING, "EVIDENCE_EXPIRED", old, VerdictLabel.EXPIRED, fit=fit, due=True, expires=expires)
    return replace(found, retest=True, by_schedule=fit)


def warned(facts: Facts) -> str:
    """What its agent warned of since it was tested at the level that is asked for; a lower one looks at less."""
    agent, tested = facts.view.agent, facts.proof
    for one in agent.warnings if agent is not None else ():
        at = when(one.at)
        if at is not None and at <= facts.now and (tested is None or at > tested):
            return sentence(f"{one.code}: {one.message}")
    return ""


def maintained(facts: Facts) -> str:
    """A window was over after its last test of the level that is asked for."""
    ended, tested = ended_at(facts.status), facts.proof
    since = ended is not None and (tested is None or ended > tested) and not facts.windows.why
    return "it was not tested since its maintenance" if since else ""


def passed(facts: Facts) -> Finding:
    """It may take work."""
    run = f"burn-in run {facts.signed.sequence} ({facts.signed.level}) passed in boot {facts.boot}"
    message, expires = f"{facts.view.name}: {run}", facts.expires
    return Finding(State.READY, "PASS", message, VerdictLabel.PASS, fit=True, expires=expires)


def suspect_or_new(facts: Facts) -> State:
    """What was admitted in this boot is in doubt; else nothing is known of it yet."""
    return State.SUSPECT if facts.admitted_in_this_boot else new_or_testing(facts)


def suspect_or_unseen(facts: Facts) -> State:
    """The same, where evidence is a sign of life."""
    return State.SUSPECT if facts.statement is not None else suspect_or_new(facts)


def suspect_or_testing(facts: Facts) -> State:
    """A new boot is no doubt of what was admitted in the one before."""
    return State.SUSPECT if facts.admitted_in_this_boot and not facts.rebooted else State.TESTING


def kept_back_or_testing(facts: Facts) -> State:
    """A node that is kept from work stays so while nothing is heard.

    Else a new leader, to whom no heartbeat is fresh yet, would count all of them as new boots, and its budget would let
    as many again be kept from work.
    """
    return facts.status.state if facts.status.state in (State.SUSPECT, State.EXPIRING) else State.TESTING


def new_or_testing(facts: Facts) -> State:
    """Whether it was ever tested."""
    return State.NEW if facts.status.last_test is None and facts.statement is None else State.TESTING


def _found(statement: Statement) -> str:
    """What a FAIL has found, in words."""
    finding = sentence(statement.message) or f"burn-in run {statement.sequence} failed"
    if rank(statement.level) >= 0:
        return finding
    return f"{finding.rstrip('.')}, seen by its agent at {sentence(statement.finished_at)}"


def _inconclusive(facts: Facts) -> str:
    return sentence(facts.signed.message) or f"burn-in run {facts.signed.sequence} was inconclusive"
