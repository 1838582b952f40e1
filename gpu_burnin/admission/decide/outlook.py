"""What comes next for a node, why and when: always something. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.judge import Judged
from gpu_burnin.admission.decide.phase import Phase
from gpu_burnin.admission.decide.times import stamp, when
from gpu_burnin.api.record import Next, Request, State

_AWAITED = {
    "AGENT_BOOT": "its agent has to speak in this boot",
    "AGENT_SILENT": "its agent has to be heard again (gpu-burnin-watch on the node)",
    "BOOT_UNDECIDED": "a person has to mend what `gpu-burnin report` on the node names, and then ask for a test: "
    "muster node retest",
    "EVIDENCE_BOOT": "the burn-in of this boot has to pass; it starts by itself",
    "EVIDENCE_MISSING": "its first burn-in has to pass (site.yml starts it)",
    "EVIDENCE_SIMULATED": "it needs a pass on real hardware",
    "HOST_KEY_UNKNOWN": "its host key has to be pinned",
    "LEDGER_RESTORED": "its agent has to say its newest evidence anew, which it does by itself when it runs and is "
    "newer than 0.2.0; else it needs a test: muster node retest",
    "NODE_ABSENT": "kubelet has to register the node, which it does once a burn-in of this boot has passed",
    "NODE_UNKNOWN": "kubelet has to report again",
    "NODE_UNREPORTED": "kubelet has to report the node's status",
    "POWER_CYCLE_OWED": "a person has to power the machine off and on (playbooks/repair.yml does where it has a BMC), "
    "and to confirm it: muster node retest --power-cycled",
    "REBOOTED": "kubelet has to report the new boot, and its burn-in has to pass; both come by themselves",
}


def _time(text: str) -> str:
    moment = when(text)
    return stamp(moment) if moment is not None else ""


def next_of(phase: Phase, request: Request | None, judged: Judged | None = None, *, unanswered: bool = False) -> Next:
    """What comes next at this place, where nothing more is known than the place."""
    if request is not None and unanswered:
        why = (
            f"the test of level {request.level} has no result: look at gpu-burnin-watch on the node; muster node retest"
        )
        return Next("judged again", f"{why} asks anew")
    if request is not None:
        return Next("judged by its test", f"level {request.level}, asked for at {request.since}: {request.why}")
    if phase.state is State.READY:
        expires = stamp(judged.expires) if judged is not None and judged.expires is not None else ""
        return Next("tested again", "its proof ends then, or earlier by the schedule", expires)
    if phase.state is State.REPAIRING:
        return Next("tested", "when it comes back from repair", _time(phase.until))
    if phase.state is State.HELD:
        return Next("judged again", f"when {phase.who} lets it go", _time(phase.until))
    if phase.state is State.QUARANTINED and phase.who:
        return Next("judged again", f"its work is asked to leave, until {phase.who} lets it go", _time(phase.until))
    if phase.state is State.QUARANTINED:
        return Next("repaired", "its work is asked to leave, then playbooks/repair.yml does what was found asks for")
    why = _AWAITED.get(phase.code, "it needs a pass of a new burn-in, or what the code asks for")
    return Next("judged again", why)
