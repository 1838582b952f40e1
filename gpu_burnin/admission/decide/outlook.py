"""What comes next for a node, why and when: always something; and what is said where there is no grant. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.between import fabric_test
from gpu_burnin.admission.decide.fabric import FABRIC_ALONE, FABRIC_WAITS, deadline, then_of
from gpu_burnin.admission.decide.facts import Facts, TestRequest
from gpu_burnin.admission.decide.finding import Finding
from gpu_burnin.admission.decide.maintenance import BEGUN
from gpu_burnin.admission.decide.offered import GPUS_MISSING
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import PAUSED
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.record import Next, State
from gpu_burnin.api.remedies import agent

_BETWEEN = (FABRIC_WAITS, FABRIC_ALONE, "FABRIC_SUSPECT")
LET_IN, TAKEN_OUT = "let in", "taken from work"
# What an attached cluster has other words for is below.
_AWAITED = {
    "AGENT_BOOT": "its agent has to speak in this boot",
    "AGENT_SILENT": "its agent has to be heard again (gpu-burnin-watch on the node)",
    "BOOT_UNDECIDED": "a person has to mend what `gpu-burnin report` on the node names, and then ask for a test: "
    "muster node retest",
    "EVIDENCE_BOOT": "the burn-in of this boot has to pass; it starts by itself",
    "EVIDENCE_MISSING": "its first burn-in has to pass (site.yml starts it)",
    "EVIDENCE_SIMULATED": "it needs a pass on real hardware",
    FABRIC_ALONE: "it has to pass a test with another node, which begins when one is idle",
    "FABRIC_SUSPECT": "it is tested with proven nodes as they are idle: three passes clear it, three failures with two "
    "of them name it; with another suspect one pass clears those that did not fail with a proven one; after a "
    "repair `muster node retest` has it begin anew",
    "HOST_KEY_UNKNOWN": "its host key has to be pinned",
    "LEDGER_RESTORED": "its agent has to say its newest evidence anew, which it does by itself when it runs and is "
    "newer than 0.2.0; else it needs a test: muster node retest",
    "NODE_ABSENT": "kubelet has to register the node, which it does once a burn-in of this boot has passed",
    "NODE_UNKNOWN": "kubelet has to report again",
    "NODE_UNREPORTED": "kubelet has to report the node's status",
    "POWER_CYCLE_OWED": "a person has to power the machine off and do what the message says (playbooks/repair.yml does "
    "a power cycle where it has a BMC), and to confirm it: muster node retest --power-cycled",
    "REBOOTED": "kubelet has to report the new boot, and its burn-in has to pass; both come by themselves",
}

_ATTACHED = {
    "AGENT_SILENT": f"its agent has to be heard again ({agent(Mode.ENFORCING)})",
    "BOOT_UNDECIDED": "a person has to mend what its report names, and then ask for a test: muster node retest",
    "EVIDENCE_MISSING": "its first burn-in has to pass, which it is asked for when it is idle",
    "NODE_ABSENT": "kubelet has to register the node",
    "POWER_CYCLE_OWED": "a person has to power the machine off and do what the message says, and to confirm it: muster "
    "node retest --power-cycled",
}


def next_of(facts: Facts, shown: Finding, test: TestRequest, own: Finding) -> Next:
    """What comes next at this place, where nothing more is known than the place."""
    built = facts.rules.mode is Mode.BUILT
    awaited = _AWAITED if built else {**_AWAITED, **_ATTACHED}
    request, until = test.request, stamp(end) if (end := when(shown.until)) is not None else ""
    if request is not None and test.unanswered:
        why = f"the test of level {request.level} has no result: look at {agent(facts.rules.mode)}"
        return Next("judged again", f"{why}; muster node retest asks anew")
    if request is not None:
        return Next("judged by its test", f"level {request.level}, asked for at {request.since}: {request.why}")
    if shown.note and shown.code == GPUS_MISSING:
        since = when(facts.status.since) if facts.status.code == GPUS_MISSING else None
        at = stamp(later(since or facts.now, facts.rules.gpus_grace_s))
        return Next("kept from new work", "unless kubelet offers all its GPUs by then", at)
    if shown.note and shown.code == BEGUN:
        over = facts.windows.changes_at
        return Next("open to new work and tested", "when the maintenance is over", stamp(over) if over else "")
    if (shown.state is State.READY or shown.code in _BETWEEN) and (running := fabric_test(facts)) is not None:
        return Next("judged by its test with other nodes", f"test {running.id}", running.until)
    if shown.code == FABRIC_WAITS:
        return Next(then_of(facts), "when it has passed with another node, or at this time", stamp(deadline(facts)))
    if shown.state is State.READY:
        expires = stamp(own.expires) if own.expires is not None else ""
        return Next("tested again", "its proof ends then, or earlier by the schedule", expires)
    if shown.state is State.REPAIRING:
        return Next("tested", "when it comes back from repair", until)
    if shown.state is State.HELD:
        return Next("judged again", f"when {shown.who} lets it go", until)
    if shown.state is State.QUARANTINED and shown.who:
        return Next("judged again", f"its work is asked to leave, until {shown.who} lets it go", until)
    if shown.state is State.QUARANTINED:
        who = "playbooks/repair.yml does" if built else "somebody does"
        then = "" if built else f", and `muster node retest {facts.view.name}` has it tested"
        return Next("repaired", f"its work is asked to leave, then {who} what was found asks for{then}")
    return Next("judged again", awaited.get(shown.code, "it needs a pass of a new burn-in, or what the code asks for"))


def waits_for(name: str, becomes: str, leave: Budget | None, why: str, *, opens: bool) -> tuple[str, str]:
    """What comes when there is leave, and why it does not; `opens`: without it the node takes new work.

    What a person asks is never held back, so each budget but that of joins names the ask that ends the wait.
    """
    if leave is Budget.JOIN:
        return LET_IN, why
    if leave is None or why.startswith(PAUSED):
        return ("tested" if leave is Budget.TEST else becomes), why
    if leave is Budget.EXPIRE:
        what = "kept from new work and tested, since its proof is old"
        return what, f"{why}; it works on, and `muster node retest {name}` has it tested all the same"
    if leave is Budget.TEST:
        return "tested", f"{why}; `muster node retest {name}` has it tested all the same"
    if opens:
        return TAKEN_OUT, (
            f"{why}; meanwhile it takes new work: `muster node hold {name}` keeps that away, `muster node quarantine "
            f"{name}` also asks the work on it to leave"
        )
    return becomes, (
        f"{why}; meanwhile it takes no new work, and what runs on it stays: `muster node quarantine {name}` asks that "
        "to leave"
    )
