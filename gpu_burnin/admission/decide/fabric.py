"""A test with another node as a step of admission: who waits for one, until when, and what then. Pure.

The time to wait begins with the state that the ledger keeps, so that a restart of the admitter changes no deadline.
"""

from __future__ import annotations

from datetime import datetime

from gpu_burnin.admission.decide.between import fabric_test
from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.finding import Finding, VerdictLabel
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.fabric_config import Admission, Alone, FabricRules
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.record import State
from gpu_burnin.system.quantities import duration

FABRIC_WAITS, FABRIC_ALONE = "FABRIC_WAITS", "FABRIC_ALONE"
_OURS = frozenset({FABRIC_WAITS, FABRIC_ALONE})


def wanted(name: str, code: str) -> str:
    """Why this node with this code in the ledger is to be tested with another one, "" where nobody waits for that."""
    return {
        FABRIC_WAITS: f"{name} passed its own burn-in, and is let in after a test with another node",
        FABRIC_ALONE: f"no test of {name} with another node came about in time",
    }.get(code, "")


def passed_at(proof: FabricProof | None, boot: str) -> datetime | None:
    """When the node last passed with another one in this boot, None where it has not, or its newest tests failed."""
    if proof is None or proof.outcome is not FabricOutcome.PASSED or not boot or proof.boot_id != boot:
        return None
    if proof.failed_with:
        return None
    return when(proof.tested_at)


def waits_for_partner(facts: Facts) -> Finding | None:
    """It passed its own burn-in, is not let in, and has passed with no other node in this boot."""
    rules = facts.rules.fabric
    if not (_untested(facts) and facts.gated) or (_is_over(facts) and rules.alone is Alone.ADMIT):
        return None
    name, since, end = facts.view.name, stamp(_since(facts)), stamp(deadline(facts))
    nics = "" if facts.spec.fabric else ", and its NodeAdmission names no NIC for one (fleet_fabric_nics)"
    if _is_over(facts):
        message = f"{name}: held, since {_nothing_came(rules)}{nics}; it is let in after such a test"
        return Finding(State.TESTING, FABRIC_ALONE, message, VerdictLabel.PASS)
    leaf = f" of leaf {facts.spec.place.leaf}" if facts.spec.place.leaf else ""
    message = (
        f"{name}: its own burn-in passed; it waits for a test with another node{leaf} since {since}{nics}, at the "
        f"latest until {end}, then it is {_then(rules)}"
    )
    return Finding(State.TESTING, FABRIC_WAITS, message, VerdictLabel.PASS)


def let_in_alone(facts: Facts) -> str:
    """It takes work, or is let in now, without a test with another node, since none came about in time."""
    if not _untested(facts):
        return ""
    newest = next((step.code for step in reversed(facts.status.transitions) if step.code in _OURS), "")
    if not (facts.gated or newest == FABRIC_ALONE):
        return ""
    return f"let in without a test with another node: {_nothing_came(facts.rules.fabric)}"


def deadline(facts: Facts) -> datetime:
    """Until when it waits."""
    return later(_since(facts), facts.rules.fabric.wait_s)


def then_of(facts: Facts) -> str:
    """What comes at the end of the time to wait."""
    return _then(facts.rules.fabric)


def _then(rules: FabricRules) -> str:
    return "let in" if rules.alone is Alone.ADMIT else "held"


def _nothing_came(rules: FabricRules) -> str:
    return f"none came about in {duration(rules.wait_s)}"


def _untested(facts: Facts) -> bool:
    """Whether such a test is asked for, and the newest one of this boot and after the last repair is no pass."""
    if facts.rules.fabric.admission is not Admission.REQUIRED:
        return False
    at, repaired = passed_at(facts.status.fabric, facts.boot), facts.repaired_at
    return at is None or (repaired is not None and repaired > at)


def _since(facts: Facts) -> datetime:
    status = facts.status
    begun = when(status.since) if status.code in _OURS else None
    return begun or when(stamp(facts.now)) or facts.now


def _is_over(facts: Facts) -> bool:
    """Whether the time to wait is over. One that is in such a test, or in a maintenance window, waits for the end."""
    if fabric_test(facts) is not None or facts.windows.why:
        return False
    return facts.status.code == FABRIC_ALONE or facts.now >= deadline(facts)
