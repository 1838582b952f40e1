"""What tests between nodes mean for a decision: one that is under way, and what they found of the node. Pure."""

from __future__ import annotations

from datetime import datetime

from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.finding import Finding, VerdictLabel
from gpu_burnin.admission.decide.nodes import annotation
from gpu_burnin.admission.decide.times import later, when
from gpu_burnin.admission.view import Budget, Node
from gpu_burnin.api.agent_note import NoteError
from gpu_burnin.api.fabric_note import FabricRequest, read_fabric_request
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import State

FABRIC_NODE, FABRIC_SUSPECT = "FABRIC_NODE", "FABRIC_SUSPECT"
# A request stays so long beyond its end, else the result of a test with a silent member would go with it.
_KEPT_S = 15.0


def requested_test(node: Node, names: Names) -> FabricRequest | None:
    """The test with other nodes that the Node is asked for, over or not; None where it cannot be read."""
    text = annotation(node, names.fabric_test)
    try:
        return None if text is None else read_fabric_request(text)
    except NoteError:
        return None


def fabric_test(facts: Facts) -> FabricRequest | None:
    """The one that is under way. It ends at its time, though nobody who leads has taken it away."""
    request = requested_test(facts.node, facts.rules.names) if facts.there else None
    return request if request is not None and facts.now < test_ends(request, facts.now) else None


def test_ends(request: FabricRequest, otherwise: datetime) -> datetime:
    """When it is over at the latest: the leader, who counts what it shows, comes to it first."""
    until = when(request.until)
    return otherwise if until is None else later(until, _KEPT_S)


def done_since(proof: FabricProof, *times: datetime | None) -> bool:
    """Whether something was done about the node at one of these times, after the newest of these tests.

    No burn-in is asked for while one of them is under way, so that one of the same second came after it.
    """
    tested = when(proof.tested_at)
    return any(at is not None and tested is not None and at >= tested for at in times)


def named_by_others(facts: Facts) -> Finding | None:
    """It failed with proven partners. A boot does not change that: a repair, or a test that a person asks for, does."""
    proof = _standing(facts)
    if proof is None or proof.outcome is not FabricOutcome.NAMED:
        return None
    acted_on = FABRIC_NODE if facts.denied is not Budget.GATE else ""
    message = f"{facts.view.name}: tests with other nodes: {proof.claim}"
    return Finding(State.QUARANTINED, FABRIC_NODE, message, VerdictLabel.FAIL, fault=acted_on)


def suspected_by_others(facts: Facts) -> str:
    """A test with another node failed in this boot, and which of them it is was not told apart yet."""
    proof = _standing(facts)
    if proof is None or proof.outcome is not FabricOutcome.SUSPECT or proof.boot_id != facts.boot:
        return ""
    return f"a test with another node failed: {proof.claim}"


def _standing(facts: Facts) -> FabricProof | None:
    """What tests found of it, unless something was done about it since."""
    proof = facts.status.fabric
    status = facts.status
    # Records of before have only when the person asked.
    if proof is None or done_since(proof, when(status.retest_began or status.retested), facts.repaired_at):
        return None
    return proof
