"""What became of the nodes, as the ledger and the cluster tell it; and waiting for those that should come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.approve import InventoryNode, judge_csr, missing_certificates, relevant
from gpu_burnin.admission.client import ONE_BY_ONE, KubeApi, admissions_path
from gpu_burnin.admission.decide.nodes import annotation, boot_id, gated, labelled_ready, trim_node
from gpu_burnin.admission.decide.outlook import LET_IN
from gpu_burnin.admission.decide.words import PAUSED
from gpu_burnin.admission.provision import entries
from gpu_burnin.admission.view import Node
from gpu_burnin.api.evidence import EvidenceError, decode_annotation, parse_statement
from gpu_burnin.api.evidence_codes import CODES as REFUSALS
from gpu_burnin.api.names import LEASE, SIMULATED_LABEL, SYSTEM_NAMESPACE, VERDICT_LABEL, Names
from gpu_burnin.api.record import NodeAdmission, State, parse
from gpu_burnin.api.remedies import DELETED

POLL_S = 2.0
_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}"
# The admitter has an answer; before it, the node is on its way.
_ON_ITS_WAY = (State.NEW, State.TESTING)


@dataclass(frozen=True)
class Standing:
    """One GPU node. `state` is ready (it may take work now), held or absent; `course` is the ledger's word for it."""

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

    Returns also, for each that did not come within `wait_s` seconds, one sentence on what is missing. The admitter lets
    nodes in one after the other: whenever one that waited for its turn has been let in, that time begins anew.
    Raises ApiError.
    """
    deadline = clock() + wait_s
    missing = dict.fromkeys(expect, "")
    queue: set[str] = set()
    while missing:
        began = clock()
        records, nodes = read(api, names, missing)
        missing = _missing(api, gpu_nodes, inventory, missing, records, nodes, names, now())
        if queue - missing.keys():
            deadline = clock() + wait_s
        if clock() >= deadline:
            break
        queue = {name for name in missing if name in records and _waits_its_turn(records[name])}
        if missing:
            # Of thousands a look takes long, and the admitter needs the API servers meanwhile.
            sleep(max(POLL_S, clock() - began))
    records, nodes = read(api, names)
    standings = [standing(name, records.get(name), nodes.get(name), names) for name in gpu_nodes]
    leader = _leader(api) if missing else ""
    return standings, {name: f"{sentence}{leader}" for name, sentence in missing.items()}


def read(
    api: KubeApi, names: Names, only: Collection[str] = ()
) -> tuple[Mapping[str, NodeAdmission], Mapping[str, Node]]:
    """The entries and the Nodes: all, or where there are few in `only`, these. Raises ApiError and RecordError."""
    if not 0 < len(only) <= ONE_BY_ONE:
        return entries(api, names), {name: trim_node(node) for name, node in api.nodes().items()}
    records = {name: found for name in only if (found := api.find(admissions_path(names, name))) is not None}
    nodes = {name: node for name in only if (node := api.node(name)) is not None}
    return (
        {name: parse(record) for name, record in records.items()},
        {name: trim_node(node) for name, node in nodes.items()},
    )


def standing(name: str, record: NodeAdmission | None, node: Node | None, names: Names) -> Standing:
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
        # What schedulers see: a node that is tested keeps its label, one that is not let in yet has none.
        state="ready" if _open(node, names) else "held",
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
    names: Names,
    now: datetime,
) -> dict[str, str]:
    csrs: list[Mapping[str, Any]] = api.csrs()
    refused = [judged for csr in csrs if relevant(csr) and (judged := judge_csr(csr, inventory)).refusals]
    missing = missing_certificates(expect, csrs, nodes, refused, now)
    for name in sorted(set(expect) & set(gpu_nodes) - set(missing)):
        if sentence := _unanswered(name, records.get(name), nodes.get(name), names):
            missing[name] = sentence
    return missing


def _unanswered(name: str, record: NodeAdmission | None, node: Node | None, names: Names) -> str:
    if node is None:
        return f"{name} has not registered; look at `systemctl status kubelet` and `gpu-burnin gate` on it. {DELETED}"
    if record is None:
        return f"{name} has no entry in the ledger; run this again"
    status = record.status
    planned = status.next
    if not status.since and planned is None:
        return f"{name}: the admitter has not looked at it yet"
    if status.code not in REFUSALS and _sequence(node, names) > status.highest_sequence:
        return f"{name}: the admitter has not read the newest evidence yet"
    if _open(node, names) or (planned is not None and planned.why.startswith(PAUSED)):
        return ""
    if status.state not in _ON_ITS_WAY and not _waits_its_turn(record):
        return ""
    coming = f"; next: {status.next.what} ({status.next.why})" if status.next else ""
    return f"{status.message} ({status.code}){coming}"


def _waits_its_turn(record: NodeAdmission) -> bool:
    return record.status.next is not None and record.status.next.what == LET_IN


def _sequence(node: Node, names: Names) -> int:
    """The sequence that the node's evidence says, unchecked; 0 where it cannot be read, which the admitter refuses."""
    try:
        return parse_statement(decode_annotation(annotation(node, names.evidence) or "").statement).sequence
    except EvidenceError:
        return 0


def _open(node: Node, names: Names) -> bool:
    return labelled_ready(node) and not gated(node, names)


def _leader(api: KubeApi) -> str:
    """Words on the admitter where there is none; nothing where one leads."""
    lease = api.find(_LEASE_PATH, f"read the Lease {SYSTEM_NAMESPACE}/{LEASE}")
    if lease is not None and (lease.get("spec") or {}).get("holderIdentity"):
        return ""
    return " (no admitter leads: look at `systemctl status muster-admitter` on the API servers' hosts)"
