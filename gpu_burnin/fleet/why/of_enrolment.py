"""Why a node of an attached cluster has no NodeAdmission: what its agent's enrolment says. Pure."""

from __future__ import annotations

from gpu_burnin.api.enrolment import EnrolmentError, claim_of, parse_enrolment
from gpu_burnin.fleet.why.of_cluster import Object


def why_unlisted(node: str, document: Object | None) -> str:
    """What keeps this node out of the ledger, by its NodeEnrolment, and what to do."""
    command = f"`muster attach approve {node}`"
    if document is None:
        return "no agent has come from it: see that the pod of DaemonSet muster-node in muster-system runs there"
    try:
        enrolment = parse_enrolment(document)
        decided, claim = enrolment.spec.decision, claim_of(enrolment)
    except EnrolmentError as error:
        return (
            f"its agent waits, and what it claims cannot be believed: {error}; `muster attach forget {node}` asks anew"
        )
    if decided is None:
        return f"its agent waits for approval, with the key {claim.fingerprint}: {command}"
    if not decided.approved:
        return f"{decided.who} refused its agent, with the key {claim.fingerprint}: {decided.why}"
    return f"its agent was approved by {decided.who}; if somebody removed the NodeAdmission, {command} writes it again"
