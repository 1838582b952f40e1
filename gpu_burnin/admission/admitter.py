"""The admitter's pass over the nodes: read, verify, decide, patch; and waiting for nodes that should come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gpu_burnin.admission.client import ApiError, Conflict
from gpu_burnin.admission.decide.nodes import DELETED, boot_id, condition, machine_id
from gpu_burnin.admission.ledger import Entry, Ledger
from gpu_burnin.admission.node import Act, Decision, Evidence, Policy, decide
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.node.evidence import DEFAULT_TTL_S, EvidenceError, Expectation, parse_statement, verify
from gpu_burnin.node.evidence import decode_annotation as decode
from gpu_burnin.system import known_hosts as kh

POLL_S = 2.0
# Each conflict means that somebody else wrote the node in the milliseconds between; five in a row is a fight.
ATTEMPTS = 5
THREADS = 16
# At most this share of the nodes is kept from new work for expired evidence at a time (design, section 5).
EXPIRY_SHARE = 0.05
_ANY_SKEW_S = 1e10


class NodeApi(Protocol):
    """What the admitter needs of the API; see client.KubeApi."""

    def nodes(self) -> Mapping[str, Node]: ...
    def node(self, name: str) -> Node | None: ...
    def patch_node(self, name: str, patch: Patch, *, status: bool = False) -> Node: ...


@dataclass(frozen=True)
class NodeSpec:
    """A node of the inventory: its name, and the address and port under which known_hosts has its key.

    `gate_closed` is what it says of its own gate, "" when that is open or was not asked.
    """

    name: str
    address: str
    port: int = kh.DEFAULT_PORT
    allow_simulated: bool = False
    gate_closed: str = ""


@dataclass(frozen=True)
class Settings:
    """What holds for all nodes. `ttl_s` in seconds."""

    known_hosts: Path
    ledger_dir: Path
    domain: str = "muster.dev"
    ttl_s: float = DEFAULT_TTL_S


@dataclass(frozen=True)
class NodeReport:
    """One node after the pass. `state` is ready, held or absent; `action` what was done (or would be)."""

    name: str
    state: str
    verdict: str | None
    code: str
    message: str
    action: Act = Act.NOTHING
    simulated: bool = False
    boot_id: str | None = None
    sequence: int | None = None


@dataclass
class Admitter:
    """Runs passes; remembers verified annotations within its life, so that polling costs no signatures."""

    api: NodeApi
    settings: Settings
    apply: bool = True
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _verified: dict[tuple[str, str, str], Evidence] = field(default_factory=dict)

    def run(self, specs: Sequence[NodeSpec]) -> list[NodeReport]:
        """One pass over the nodes of the inventory; raises GpuBurninError when API or ledger cannot be used."""
        known, ledger = kh.load(self.settings.known_hosts), Ledger(self.settings.ledger_dir)
        nodes = self.api.nodes()
        keys = {spec.name: _pinned(known, spec) for spec in specs}
        waiting = self._expiry_waits(specs, nodes, keys, ledger)

        def one(spec: NodeSpec) -> NodeReport:
            return self._one(spec, nodes.get(spec.name), keys[spec.name], ledger, spec.name in waiting)

        with ThreadPoolExecutor(max_workers=max(1, min(THREADS, len(specs)))) as pool:
            return list(pool.map(one, specs))

    def _one(self, spec: NodeSpec, node: Node | None, key: str, ledger: Ledger, waits: bool) -> NodeReport:
        acted: Act | None = None
        for _ in range(ATTEMPTS):
            if node is None:
                return absent(spec.name)
            old, decision = self._decide(spec, node, key, ledger)
            if waits:
                return _report(node, _not_yet(decision))
            if not self.apply:
                return _report(node, decision)
            # The ledger goes first: it keeps what was seen even if the patch fails.
            if decision.entry != old:
                ledger.write(spec.name, decision.entry)
            try:
                if decision.patch is not None:
                    node = self.api.patch_node(spec.name, decision.patch)
                    acted = decision.action
                if decision.status_patch is not None:
                    self._patch_status(spec.name, node, decision.status_patch)
                return _report(node, replace(decision, action=acted or decision.action))
            except Conflict as error:
                conflict = error
                node = self.api.node(spec.name)
        raise ApiError(
            f"{spec.name}: the node kept changing while it was patched ({ATTEMPTS} attempts; last: {conflict}); "
            "find out who else writes it (kubectl get node -o yaml --show-managed-fields) and run again"
        )

    def _patch_status(self, name: str, node: Node, patch: Patch) -> None:
        # The first patch has given the node a new version.
        test, *rest = patch
        version = node["metadata"]["resourceVersion"]
        self.api.patch_node(name, [{**test, "value": version}, *rest], status=True)

    def _decide(self, spec: NodeSpec, node: Node, key: str, ledger: Ledger) -> tuple[Entry, Decision]:
        entry = ledger.read(spec.name, key)
        policy = Policy(self.settings.domain, self.settings.ttl_s, spec.allow_simulated, spec.gate_closed)
        evidence = self._evidence(spec, node, key, entry, policy, ledger)
        return entry, decide(node, evidence, entry, policy, self.now())

    def _evidence(self, spec: NodeSpec, node: Node, key: str, entry: Entry, policy: Policy, ledger: Ledger) -> Evidence:
        annotation = (node["metadata"].get("annotations") or {}).get(policy.evidence_annotation)
        if annotation is None:
            return Evidence()
        if not key:
            pattern = kh.host_pattern(spec.address, spec.port)
            return Evidence(
                code="HOST_KEY_UNKNOWN",
                message=f"{spec.name}: {self.settings.known_hosts} has not exactly one ssh-ed25519 key of {pattern}; "
                "probe the host (muster probe)",
            )
        cached = self._verified.get((spec.name, key, annotation))
        if cached is None:
            cached = _authentic(annotation, key, spec.name, machine_id(node), self.now())
            self._verified[(spec.name, key, annotation)] = cached
        return _not_replayed(cached, entry, spec.name, ledger)

    def _expiry_waits(
        self, specs: Sequence[NodeSpec], nodes: Mapping[str, Node], keys: Mapping[str, str], ledger: Ledger
    ) -> Collection[str]:
        """Names of nodes whose evidence is expired but which may go on until others have been tested again."""
        expired = [
            (spec.name, decision.action)
            for spec in specs
            if (node := nodes.get(spec.name)) is not None
            and (decision := self._decide(spec, node, keys[spec.name], ledger)[1]).finding.code == "EVIDENCE_EXPIRED"
        ]
        out = sum(1 for _, action in expired if action is not Act.RETAINT)
        room = max(0, max(1, int(EXPIRY_SHARE * len(specs))) - out)
        return [name for name, action in expired if action is Act.RETAINT][room:]


def admit(
    admitter: Admitter,
    specs: Sequence[NodeSpec],
    expect: Collection[str],
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[NodeReport], dict[str, str]]:
    """Run passes until every node in `expect` has registered and published evidence of its current boot.

    Returns the last report of each node (with the most telling action of all passes), and for each expected node
    that did not come within `wait_s` seconds what is missing.
    """
    deadline = clock() + wait_s
    acted: dict[str, Act] = {}
    while True:
        # Before the pass: what has come by now is judged in it.
        missing = missing_nodes(admitter, expect)
        reports = admitter.run(specs)
        acted.update({r.name: r.action for r in reports if r.action is not Act.NOTHING})
        if not missing or clock() >= deadline:
            return [replace(r, action=acted.get(r.name, r.action)) for r in reports], missing
        sleep(POLL_S)


def as_json(report: NodeReport) -> dict[str, object]:
    """A report as plain data, for the Ansible module."""
    return {
        "name": report.name,
        "state": report.state,
        "verdict": report.verdict,
        "reasons": [{"code": report.code, "message": report.message}],
        "action": str(report.action),
        "simulated": report.simulated,
        "boot_id": report.boot_id,
        "sequence": report.sequence,
    }


def missing_nodes(admitter: Admitter, expect: Collection[str]) -> dict[str, str]:
    """For each expected node that cannot be judged yet, one sentence on what is missing."""
    if not expect:
        return {}
    nodes = admitter.api.nodes()
    domain = admitter.settings.domain
    sentences = {name: _missing(name, nodes.get(name), domain) for name in sorted(expect)}
    return {name: sentence for name, sentence in sentences.items() if sentence}


def absent(name: str) -> NodeReport:
    """The report of a node that has not registered."""
    return NodeReport(name, "absent", None, "NODE_ABSENT", f"{name}: no Node object: kubelet has not registered it")


def _missing(name: str, node: Node | None, domain: str) -> str:
    if node is None:
        return f"{name} has not registered; look at `systemctl status kubelet` and `gpu-burnin gate` on it. {DELETED}"
    boot, ready = boot_id(node), condition(node, "Ready")
    if not boot or ready is None or ready.get("status") == "Unknown":
        return f"{name} is registered but kubelet does not report its status; look at its kubelet's log"
    annotation = (node["metadata"].get("annotations") or {}).get(f"{domain}/evidence")
    if annotation is None:
        return f"{name} has not published evidence; look at `systemctl status gpu-burnin-publish` on it"
    try:
        evidence_boot = parse_statement(decode(annotation).statement).boot_id
    except EvidenceError:
        # Published, and refused: that is an answer, not something to wait for.
        return ""
    if evidence_boot != boot:
        return (
            f"{name} has evidence of boot {evidence_boot} but runs boot {boot}; "
            "look at `systemctl status gpu-burnin-boot gpu-burnin-publish` on it"
        )
    return ""


def _pinned(known: kh.KnownHosts, spec: NodeSpec) -> str:
    lines = {k.line for k in known.keys(spec.address, spec.port) if k.key_type == kh.EVIDENCE_KEY_TYPE}
    return lines.pop() if len(lines) == 1 else ""


def _authentic(annotation: str, key: str, name: str, machine: str, now: datetime) -> Evidence:
    """What the host really signed, whatever and whenever: it is remembered before it is judged."""
    expect = Expectation(
        node=name, machine_id=machine or None, ttl_s=None, skew_s=_ANY_SKEW_S, verdict=None, allow_simulated=True
    )
    try:
        return Evidence(verify(annotation, key, expect, now).statement)
    except EvidenceError as error:
        return Evidence(error.statement, error.code, str(error))


def _not_replayed(evidence: Evidence, entry: Entry, name: str, ledger: Ledger) -> Evidence:
    statement = evidence.statement
    if statement is None or evidence.code is not None or statement.sequence > entry.highest_sequence:
        return evidence
    seen = entry.highest_sequence
    if statement.sequence == seen and statement.report_sha256 == entry.highest_report_sha256:
        return evidence
    return Evidence(
        statement,
        "EVIDENCE_REPLAYED",
        f"{name}: the evidence has sequence {statement.sequence}, but {seen} of this node has been seen "
        f"with another report; run gpu-burnin run on it (if its state directory was lost: write {seen} into "
        f"/var/lib/gpu-burnin/sequence first; the ledger is {ledger.path(name)})",
    )


def _not_yet(decision: Decision) -> Decision:
    finding = replace(decision.finding, ready=True, message=f"{decision.finding.message} (waits for its turn)")
    return replace(decision, action=Act.NOTHING, finding=finding, patch=None, status_patch=None)


def _report(node: Node, decision: Decision) -> NodeReport:
    finding = decision.finding
    return NodeReport(
        name=node["metadata"]["name"],
        state="ready" if finding.ready else "held",
        verdict=str(finding.verdict),
        code=finding.code,
        message=finding.message,
        action=decision.action,
        simulated=finding.simulated,
        boot_id=boot_id(node) or None,
        sequence=decision.entry.highest_sequence or None,
    )
