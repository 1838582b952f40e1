"""What became of the nodes, as the ledger and the cluster tell it; and waiting for those that should come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.approve import InventoryNode, judge_csr, missing_certificates, relevant
from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.nodes import DELETED, boot_id
from gpu_burnin.admission.names import LEASE, SIMULATED_LABEL, SYSTEM_NAMESPACE, VERDICT_LABEL, Names
from gpu_burnin.admission.provision import entries
from gpu_burnin.admission.record import NodeAdmission, State
from gpu_burnin.admission.view import Node

POLL_S = 2.0
_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}"
# The admitter has an answer; before it, the node is on its way.
_ON_ITS_WAY = (State.NEW, State.TESTING)


@dataclass(frozen=True)
class Standing:
    """One GPU node. `state` is ready, held or absent; `course` is the ledger's word for where it stands."""

    name: str
    state: str
    course: str
    verdict: str | None
    code: str
    message: str
    next: str = ""
    simulated: bool = False
    boot_id: str | None = None
    sequence: int | None = None


def wait_for(
    api: KubeApi,
    names: Names,
    gpu_nodes: Sequence[str],
    inventory: Mapping[str, InventoryNode],
    expect: Collection[str],
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> tuple[list[Standing], dict[str, str]]:
    """How each GPU node stands once every node in `expect` has its certificates and the admitter's answer.

    Returns also, for each that did not come within `wait_s` seconds, one sentence on what is missing. Raises ApiError.
    """
    deadline = clock() + wait_s
    while True:
        records, nodes = entries(api, names), api.nodes()
        missing = _missing(api, gpu_nodes, inventory, expect, records, nodes, now())
        if not missing or clock() >= deadline:
            standings = [standing(name, records.get(name), nodes.get(name)) for name in gpu_nodes]
            if missing:
                missing = {name: f"{sentence}{_leader(api)}" for name, sentence in missing.items()}
            return standings, missing
        sleep(POLL_S)


def standing(name: str, record: NodeAdmission | None, node: Node | None) -> Standing:
    """One node, by what ledger and cluster say. Pure."""
    if record is None:
        message = f"{name}: the ledger has no entry for it; run playbooks/admit.yml"
        return Standing(name, "absent", "", None, "NOT_PROVISIONED", message)
    status = record.status
    coming = f"{status.next.what}: {status.next.why}" if status.next else ""
    if node is None:
        message = f"{name}: no Node object: kubelet has not registered it"
        return Standing(name, "absent", str(status.state), None, "NODE_ABSENT", message, coming)
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return Standing(
        name=name,
        state="ready" if status.state is State.READY else "held",
        course=str(status.state),
        verdict=labels.get(VERDICT_LABEL),
        code=status.code or "NODE_UNREPORTED",
        message=status.message or f"{name}: the admitter has not looked at it yet",
        next=coming,
        simulated=SIMULATED_LABEL in labels,
        boot_id=boot_id(node) or None,
        sequence=status.highest_sequence or None,
    )


def _missing(
    api: KubeApi,
    gpu_nodes: Sequence[str],
    inventory: Mapping[str, InventoryNode],
    expect: Collection[str],
    records: Mapping[str, NodeAdmission],
    nodes: Mapping[str, Node],
    now: datetime,
) -> dict[str, str]:
    if not expect:
        return {}
    csrs: list[Mapping[str, Any]] = api.csrs()
    refused = [judged for csr in csrs if relevant(csr) and (judged := judge_csr(csr, inventory)).refusals]
    missing = missing_certificates(expect, csrs, nodes, refused, now)
    for name in sorted(set(expect) & set(gpu_nodes) - set(missing)):
        if sentence := _unanswered(name, records.get(name), nodes.get(name)):
            missing[name] = sentence
    return missing


def _unanswered(name: str, record: NodeAdmission | None, node: Node | None) -> str:
    if node is None:
        return f"{name} has not registered; look at `systemctl status kubelet` and `gpu-burnin gate` on it. {DELETED}"
    if record is None:
        return f"{name} has no entry in the ledger; run this again"
    status = record.status
    if status.state not in _ON_ITS_WAY:
        return ""
    if not status.since:
        return f"{name}: the admitter has not looked at it yet"
    coming = f"; next: {status.next.what} ({status.next.why})" if status.next else ""
    return f"{status.message} ({status.code}){coming}"


def _leader(api: KubeApi) -> str:
    """Words on the admitter where there is none; nothing where one leads."""
    lease = api.find(_LEASE_PATH, f"read the Lease {SYSTEM_NAMESPACE}/{LEASE}")
    if lease is not None and (lease.get("spec") or {}).get("holderIdentity"):
        return ""
    return " (no admitter leads: look at `systemctl status muster-admitter` on the API servers' hosts)"
