"""Where a node stands once people's asks are laid over its own facts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.judge import Judged, VerdictLabel
from gpu_burnin.admission.decide.words import active, ask_sentence, brief, sentence
from gpu_burnin.admission.view import View
from gpu_burnin.api.record import Spec, State, Status

# Of nodes that nothing but a person keeps from work.
ASKED_CODES = frozenset({"HELD_BY_PERSON", "QUARANTINED_BY_PERSON"})


@dataclass(frozen=True)
class Phase:
    """A state with its reason. `who` is the person who asked for it, "" for nobody; `until` the end of the ask."""

    state: State
    code: str
    message: str
    who: str = ""
    until: str = ""


def phase_of(name: str, spec: Spec, judged: Judged, now: datetime) -> Phase:
    """A repair comes first, since it is what is done about a fault; then the fault; then quarantine and hold.

    A fault for which there is no grant yet (its `fault` is "") stands in the message of what a person asks meanwhile.
    """
    repair, quarantine, hold = (active(ask, now) for ask in (spec.repair, spec.quarantine, spec.hold))
    if repair is not None:
        message = sentence(f"{name}: {ask_sentence('in repair', repair)}")
        return Phase(State.REPAIRING, "REPAIRING", message, repair.who, repair.until)
    if judged.fault:
        return Phase(judged.state, judged.code, sentence(judged.message))
    found = f"{brief(judged.message)}; " if judged.verdict is VerdictLabel.FAIL else f"{name}: "
    if quarantine is not None:
        message = sentence(f"{found}{ask_sentence('put in quarantine', quarantine)}")
        return Phase(State.QUARANTINED, "QUARANTINED_BY_PERSON", message, quarantine.who, quarantine.until)
    if hold is not None:
        message = sentence(f"{found}{ask_sentence('held', hold)}")
        return Phase(State.HELD, "HELD_BY_PERSON", message, hold.who, hold.until)
    return Phase(judged.state, judged.code, sentence(judged.message))


def without_node(view: View, spec: Spec, status: Status, now: datetime) -> Phase:
    """A node that kubelet has not registered: what was found faulty stays it until it is seen again."""
    message = f"{view.name}: no Node object: kubelet has not registered it"
    found = Judged(State.NEW, "NODE_ABSENT", message)
    if status.state is State.QUARANTINED and status.code != "QUARANTINED_BY_PERSON":
        found = Judged(State.QUARANTINED, status.code, status.message, fault=status.code)
    return phase_of(view.name, spec, found, now)
