"""What is said of a node for which there is no grant: what waits, what holds it, and what a person can do. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.words import PAUSED
from gpu_burnin.admission.view import Budget, Decision

LET_IN, TAKEN_OUT = "let in", "taken from work"


def waits_for(name: str, decision: Decision, rest: Decision, why: str) -> tuple[str, str]:
    """What comes when there is leave, and why it does not; `rest` is what is done without it.

    What a person asks is never held back, so each budget but that of joins names the ask that ends the wait.
    """
    leave = decision.needs
    becomes = f"{decision.status.state} ({decision.status.code})"
    if leave is Budget.JOIN:
        return LET_IN, why
    if leave is None or why.startswith(PAUSED):
        return ("tested" if leave is Budget.TEST else becomes), why
    if leave is Budget.EXPIRE:
        what = "kept from new work and tested, since its proof is old"
        return what, f"{why}; it works on, and `muster node retest {name}` has it tested all the same"
    if leave is Budget.TEST:
        return "tested", f"{why}; `muster node retest {name}` has it tested all the same"
    if rest.opens:
        return TAKEN_OUT, (
            f"{why}; meanwhile it takes new work: `muster node hold {name}` keeps that away, `muster node quarantine "
            f"{name}` also asks the work on it to leave"
        )
    return becomes, (
        f"{why}; meanwhile it takes no new work, and what runs on it stays: `muster node quarantine {name}` asks that "
        "to leave"
    )
