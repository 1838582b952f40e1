"""Whether a Kubernetes node may take work, and the patches that say so. Pure: no I/O, no clock of its own.

The names are those of the design (section 5); the gate policies on the API servers let only the admitter change
them. Patches are one JSON Patch each with a `test` of resourceVersion: `.spec.taints` is an atomic list, so any
merge would fight with the node lifecycle controller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpu_burnin.admission.decide.nodes import boot_id, condition
from gpu_burnin.admission.ledger import Admission, Entry
from gpu_burnin.admission.names import (
    CONDITION,
    NO_EXECUTE,
    NO_SCHEDULE,
    READY_LABEL,
    SIMULATED_LABEL,
    VERDICT_LABEL,
)
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.node.evidence import DEFAULT_TTL_S, Expectation, Statement, refusal
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.types import Verdict

# Evidence of nodes tested together must not expire together.
TTL_JITTER = 0.1


class Act(StrEnum):
    """What is done to the node now."""

    ADMIT = "admit"
    HOLD = "hold"
    RETAINT = "retaint"
    NOTHING = "nothing"


class VerdictLabel(StrEnum):
    """Values of the verdict label."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Policy:
    """The rules of one node. `ttl_s` is the age in seconds after which evidence is expired.

    `gate_closed` is the node's own answer why its gate is closed: it knows of runs that left nothing to
    publish. "" when the gate is open, or the node was not asked.
    """

    domain: str = "muster.dev"
    ttl_s: float = DEFAULT_TTL_S
    allow_simulated: bool = False
    gate_closed: str = ""

    @property
    def taint_key(self) -> str:
        """Key of the preflight taint."""
        return f"{self.domain}/preflight"

    @property
    def evidence_annotation(self) -> str:
        """Where the node publishes its signed statement."""
        return f"{self.domain}/evidence"

    @property
    def admitted_annotation(self) -> str:
        """Where the admitter notes what it admitted, for people; the ledger is what it trusts."""
        return f"{self.domain}/admitted"


@dataclass(frozen=True)
class Evidence:
    """The annotation after its signature, node, machine and sequence were checked.

    `statement` is what the host signed (also when it is refused for another reason); `code` and `message`
    are the refusal, or None.
    """

    statement: Statement | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Finding:
    """What is true of a node: may it take work, and why (not). `rebooted`: nothing on it can still be running."""

    ready: bool
    verdict: VerdictLabel
    code: str
    message: str
    rebooted: bool = False
    simulated: bool = False


@dataclass(frozen=True)
class Decision:
    """A finding with what it changes: two patches (None: nothing to change) and the ledger's new entry."""

    action: Act
    finding: Finding
    patch: Patch | None
    status_patch: Patch | None
    entry: Entry


def gated(node: Node, policy: Policy) -> bool:
    """Whether the preflight taint keeps new pods away."""
    return NO_SCHEDULE in _effects(node, policy)


def node_ttl_s(name: str, ttl_s: float) -> float:
    """The node's own time to live: up to 10 % shorter than `ttl_s`, the same at every call."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return ttl_s * (1 - TTL_JITTER * share)


def find(node: Node, evidence: Evidence, entry: Entry, policy: Policy, now: datetime) -> Finding:
    """Judge a node. Every doubt holds it; a FAIL is named first, since it says most."""
    name, boot, statement = node["metadata"]["name"], boot_id(node), evidence.statement
    # The gate keeps a new boot's status out until the node is tainted, so the evidence may know of it first.
    other_boot = statement is not None and evidence.code is None and statement.boot_id != boot
    rebooted = bool(boot) and (other_boot or (entry.admitted is not None and entry.admitted.boot_id != boot))

    def held(verdict: VerdictLabel, code: str, message: str) -> Finding:
        return Finding(False, verdict, code, message, rebooted)

    doubt = VerdictLabel.INCONCLUSIVE
    if statement is not None and evidence.code is None and statement.verdict is Verdict.FAIL:
        return held(VerdictLabel.FAIL, "FAIL", f"{name}: burn-in run {statement.sequence} failed")
    reported = condition(node, "Ready")
    if not boot or reported is None:
        return held(doubt, "NODE_UNREPORTED", f"{name}: kubelet has not reported the node's status yet")
    if reported.get("status") == "Unknown":
        return held(doubt, "NODE_UNKNOWN", f"{name}: kubelet has stopped reporting, it may have booted again")
    if evidence.code is not None or statement is None:
        code = evidence.code or "EVIDENCE_MISSING"
        return held(doubt, code, evidence.message or f"{name}: no evidence of a burn-in was published")
    if other_boot:
        return held(
            doubt, "EVIDENCE_BOOT", f"{name}: evidence is of boot {statement.boot_id}, its status of boot {boot}"
        )
    if statement.verdict is not Verdict.PASS:
        return held(doubt, "INCONCLUSIVE", f"{name}: burn-in run {statement.sequence} was inconclusive")
    expect = Expectation(ttl_s=node_ttl_s(name, policy.ttl_s), allow_simulated=policy.allow_simulated)
    refused = refusal(statement, expect, now)
    if refused is not None:
        code, sentence = refused
        if code == "EVIDENCE_SKEW":
            # Without the seconds, which would make another message, and a write, at every pass.
            sentence = f"{name}: the evidence is of {statement.finished_at}, in the future; check the clocks"
        return held(VerdictLabel.EXPIRED if code == "EVIDENCE_EXPIRED" else doubt, code, sentence)
    if policy.gate_closed:
        return held(doubt, "GATE_CLOSED", f"{name}: its own gate is closed: {policy.gate_closed}")
    message = f"{name}: burn-in run {statement.sequence} ({statement.level}) passed in boot {boot}"
    return Finding(True, VerdictLabel.PASS, "PASS", message, simulated=statement.simulated)


def decide(node: Node, evidence: Evidence, entry: Entry, policy: Policy, now: datetime) -> Decision:
    """The finding and everything that has to change for it."""
    finding = find(node, evidence, entry, policy, now)
    statement = evidence.statement if evidence.code is None else None
    if statement is not None:
        entry = entry.seen(statement)
    if finding.ready and statement is not None:
        entry = _admitted(entry, statement, now)
    patch = json_patch(node, finding, entry, policy)
    status = status_patch(node, finding, now)
    was_open = not gated(node, policy) or _labels(node).get(READY_LABEL) is not None
    if patch is None and status is None:
        action = Act.NOTHING
    elif finding.ready:
        action = Act.ADMIT
    else:
        action = Act.RETAINT if was_open else Act.HOLD
    return Decision(action, finding, patch, status, entry)


def json_patch(node: Node, finding: Finding, entry: Entry, policy: Policy) -> Patch | None:
    """Taints, labels and the admitted annotation in one patch, or None when all are as they should be."""
    metadata = node["metadata"]
    taints = list(node.get("spec", {}).get("taints") or [])
    wanted = _wanted_taints(taints, finding, policy)
    patch: Patch = []
    if wanted != taints:
        patch.append({"op": "add", "path": "/spec/taints", "value": wanted})
    labels = {
        READY_LABEL: "true" if finding.ready else None,
        VERDICT_LABEL: str(finding.verdict),
        SIMULATED_LABEL: "true" if finding.ready and finding.simulated else None,
    }
    patch += _map_patch("/metadata/labels", metadata.get("labels"), labels)
    if finding.ready and entry.admitted is not None:
        note = canonical_json(asdict(entry.admitted)).decode("ascii")
        annotations = {policy.admitted_annotation: note}
        patch += _map_patch("/metadata/annotations", metadata.get("annotations"), annotations)
    return [_resource_version_test(node), *patch] if patch else None


def status_patch(node: Node, finding: Finding, now: datetime) -> Patch | None:
    """The GPUVerified condition (nodes/status), or None when nothing is to change."""
    bad = "False" if finding.verdict is VerdictLabel.FAIL else "Unknown"
    status = "True" if finding.ready else bad
    old = condition(node, CONDITION)
    wanted = {"status": status, "reason": finding.code, "message": finding.message}
    if old is not None and all(old.get(key) == value for key, value in wanted.items()):
        return None
    time = _rfc3339(now)
    since = old["lastTransitionTime"] if old is not None and old.get("status") == status else time
    new = {"type": CONDITION, **wanted, "lastHeartbeatTime": time, "lastTransitionTime": since}
    conditions = [c for c in node.get("status", {}).get("conditions") or [] if c.get("type") != CONDITION]
    return [
        _resource_version_test(node),
        {"op": "add", "path": "/status/conditions", "value": [*conditions, new]},
    ]


def _admitted(entry: Entry, statement: Statement, now: datetime) -> Entry:
    old, time = entry.admitted, _rfc3339(now)
    identity = (statement.boot_id, statement.sequence, statement.report_sha256, statement.hardware_sha256)
    if old is not None and (old.boot_id, old.sequence, old.report_sha256, old.hardware_sha256) == identity:
        return entry
    return Entry(entry.host_key, entry.highest_sequence, entry.highest_report_sha256, Admission(*identity, time))


def _wanted_taints(taints: list[Any], finding: Finding, policy: Policy) -> list[Any]:
    if finding.ready:
        return [t for t in taints if t.get("key") != policy.taint_key]
    have = {t.get("effect") for t in taints if t.get("key") == policy.taint_key}
    # NoExecute only after a boot: it would end what still runs on a node that is merely in doubt.
    effects = (NO_SCHEDULE, NO_EXECUTE) if finding.rebooted else (NO_SCHEDULE,)
    return taints + [{"key": policy.taint_key, "effect": e} for e in effects if e not in have]


def _map_patch(path: str, current: Mapping[str, str] | None, wanted: Mapping[str, str | None]) -> Patch:
    have = current or {}
    changes = {key: value for key, value in wanted.items() if have.get(key) != value}
    if not changes:
        return []
    if current is None:
        return [{"op": "add", "path": path, "value": {k: v for k, v in changes.items() if v is not None}}]
    return [
        {"op": "remove", "path": f"{path}/{_escape(key)}"}
        if value is None
        else {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        for key, value in changes.items()
    ]


def _escape(key: str) -> str:
    # RFC 6901: "~" before "/".
    return key.replace("~", "~0").replace("/", "~1")


def _resource_version_test(node: Node) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}


def _effects(node: Node, policy: Policy) -> set[str]:
    taints = node.get("spec", {}).get("taints") or []
    return {str(t.get("effect")) for t in taints if t.get("key") == policy.taint_key}


def _labels(node: Node) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return labels


def _rfc3339(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
