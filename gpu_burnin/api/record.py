"""A NodeAdmission as typed values: what the provisioner and people ask of a node, and what the admitter knows of it.

Times are RFC 3339 UTC texts ending in Z, "" for none. The CRD (gpu_burnin/api/crd.py) is made of
these classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from gpu_burnin.api.evidence import DEFAULT_TTL_S
from gpu_burnin.api.fabric_proof import FabricProof
from gpu_burnin.api.names import KIND, Names
from gpu_burnin.api.remedies import DEFINITIONS
from gpu_burnin.api.rendezvous import Nic
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.types import JSON, JSON_NAME, OMIT_DEFAULT, Action

_T = TypeVar("_T")
# The newest transitions are kept in the object; all of them are in the journal and in events.
MOST_TRANSITIONS = 20
_ABSENT: dict[str, object] = {OMIT_DEFAULT: True}


class RecordError(GpuBurninError):
    """A NodeAdmission that cannot be read."""


class State(StrEnum):
    """Where a node stands: docs/operations/standing-admission.md."""

    NEW = "new"
    TESTING = "testing"
    READY = "ready"
    EXPIRING = "expiring"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    REPAIRING = "repairing"
    HELD = "held"


def _named(name: str, default: _T) -> _T:
    made: _T = field(default=default, metadata={JSON_NAME: name})
    return made


@dataclass(frozen=True)
class Identity:
    """Which machine it is: the provisioner's to say. `host_key` is `TYPE BASE64`, "" before the host was met.

    `addresses` and `dns_names` are what its kubelet may ask certificates for. `carried_sequence` is the highest that
    was seen of the node before it had this record, or before etcd was restored; no lower one counts for its key.
    `pod_range` are the addresses of its pods, which a machine is told that enrols itself. `node_uid` is the Node that
    a machine of an attached cluster was approved as, "" where any of that name is it; `trust` says how its key came to
    be believed: "first-use" where nobody compared it with anything, "compared" where it was the one that a person
    expected, "" for one that the inventory pins.
    """

    host_key: str = _named("hostKey", "")
    machine_id: str = _named("machineID", "")
    allow_simulated: bool = _named("allowSimulated", False)
    addresses: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = _named("dnsNames", ())
    carried_sequence: int = _named("carriedSequence", 0)
    carried_report_sha256: str = _named("carriedReportSHA256", "")
    pod_range: str = field(default="", metadata={JSON_NAME: "podRange", **_ABSENT})
    node_uid: str = field(default="", metadata={JSON_NAME: "nodeUID", **_ABSENT})
    trust: str = field(default="", metadata=_ABSENT)


@dataclass(frozen=True)
class Hardware:
    """The GPUs that it should offer; 0 where the inventory does not say. `resource` is the device plugin's name.

    `offered`: kubelet has to offer exactly these before the node is let in. Else a node whose kubelet does not name
    the resource has no device plugin, and is not asked for one. `mig_strategy` is the plugin's MIG_STRATEGY, single or
    mixed, "" for none: it says what becomes of the instances of GPUs in MIG mode. `model` is a key of
    hardware/skus.yaml, which the burn-in compares with the GPUs; "" where the inventory does not say.
    """

    gpus: int = 0
    resource: str = "nvidia.com/gpu"
    offered: bool = False
    mig_strategy: str = field(default="", metadata={JSON_NAME: "migStrategy", **_ABSENT})
    model: str = field(default="", metadata=_ABSENT)


@dataclass(frozen=True)
class Place:
    """Where the machine stands, as values of labels: its rack, leaf switch, feed and spine; "" for what nobody says."""

    rack: str = field(default="", metadata=_ABSENT)
    leaf: str = field(default="", metadata=_ABSENT)
    feed: str = field(default="", metadata=_ABSENT)
    spine: str = field(default="", metadata=_ABSENT)


@dataclass(frozen=True)
class Proof:
    """The least level of evidence, and its largest age in seconds."""

    level: str = "standard"
    max_age_s: float = _named("maxAgeSeconds", DEFAULT_TTL_S)


@dataclass(frozen=True)
class Ask:
    """What a person asks for. `who` is the API user, which the gate compares; `since` tells one ask from the next.

    `power_cycled`, of a retest or a repair: the machine's power was off since the fault that asked for it.
    """

    who: str
    why: str
    since: str
    until: str = ""
    level: str = ""
    power_cycled: bool = field(default=False, metadata={JSON_NAME: "powerCycled", **_ABSENT})


@dataclass(frozen=True)
class Spec:
    """What is asked of the node. `repair` is the repair ladder's: the node is in its hands.

    `restored` is the provisioner's: etcd was put back to a snapshot, and the record of before said more of the node.
    `swing` is the provisioner's too: a play lets the node swing its power, `until` then at the latest. `fabric` are its
    network interfaces for tests with other nodes; none: it is in no such test.
    """

    identity: Identity = field(default_factory=Identity)
    hardware: Hardware = field(default_factory=Hardware)
    evidence: Proof = field(default_factory=Proof)
    hold: Ask | None = field(default=None, metadata=_ABSENT)
    quarantine: Ask | None = field(default=None, metadata=_ABSENT)
    retest: Ask | None = field(default=None, metadata=_ABSENT)
    repair: Ask | None = field(default=None, metadata=_ABSENT)
    restored: Ask | None = field(default=None, metadata=_ABSENT)
    swing: Ask | None = field(default=None, metadata=_ABSENT)
    place: Place = field(default_factory=Place, metadata=_ABSENT)
    fabric: tuple[Nic, ...] = field(default=(), metadata=_ABSENT)


@dataclass(frozen=True)
class Accepted:
    """The evidence that the node was last admitted with. `hardware` is its identity in words, to name a change."""

    sequence: int
    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    report_sha256: str = field(metadata={JSON_NAME: "reportSHA256"})
    hardware_sha256: str = field(metadata={JSON_NAME: "hardwareSHA256"})
    level: str
    finished_at: str = field(metadata={JSON_NAME: "finishedAt"})
    admitted_at: str = field(metadata={JSON_NAME: "admittedAt"})
    expires_at: str = field(metadata={JSON_NAME: "expiresAt"})
    simulated: bool = False
    hardware: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class Tested:
    """The newest run that the node has told of."""

    sequence: int
    level: str
    verdict: str
    finished_at: str = field(metadata={JSON_NAME: "finishedAt"})
    code: str = ""


@dataclass(frozen=True)
class Request:
    """A burn-in that the agent was asked for. Its answer is evidence with a higher sequence than `after_sequence`."""

    id: str
    level: str
    since: str
    why: str
    after_sequence: int = _named("afterSequence", 0)


@dataclass(frozen=True)
class Next:
    """What comes next for the node, why, and when ("" for at once or when something happens)."""

    what: str
    why: str
    at: str = ""


@dataclass(frozen=True)
class DrainRequest:
    """The work is asked to leave. Pods that hold are left until `deadline`."""

    since: str
    deadline: str
    why: str


@dataclass(frozen=True)
class Use:
    """How the node was used: idle or busy since when, and the seconds of both since `observed_since`."""

    observed_since: str = field(metadata={JSON_NAME: "observedSince"})
    since: str
    busy: bool
    idle_s: float = _named("idleSeconds", 0.0)
    busy_s: float = _named("busySeconds", 0.0)


@dataclass(frozen=True)
class Transition:
    """One change of state. `who` is the admitter or the person who asked."""

    at: str
    before: str = field(metadata={JSON_NAME: "from"})
    after: str = field(metadata={JSON_NAME: "to"})
    code: str
    message: str
    who: str = ""


def with_step(steps: tuple[Transition, ...], step: Transition) -> tuple[Transition, ...]:
    """The newest changes, and the newest way back from repair: an extended test is owed since then, however long."""
    every = (*steps, step)
    older, newest = every[:-MOST_TRANSITIONS], every[-MOST_TRANSITIONS:]
    back = next((one for one in reversed(every) if one.before == State.REPAIRING), None)
    return (back, *newest[1:]) if back is not None and back in older else newest


def new_steps(known: Sequence[Transition], now: Sequence[Transition]) -> list[Transition]:
    """The changes that a newer record has and an older one has not."""
    return [step for step in now if step not in known]


@dataclass(frozen=True)
class BootTests:
    """How often the admitter has asked for a test of a boot whose burn-in was inconclusive."""

    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    asked: int = 0


@dataclass(frozen=True)
class PowerCycle:
    """A power cycle, or a repair with the power off, that a FAIL asked for and nobody has confirmed.

    `since` is when the admitter heard of the FAIL, `action` what that asked for: power_cycle or repair.
    `gpus_sha256` is of the GPUs that were there, where their number alone was another than expected; else "".
    """

    code: str
    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    since: str
    gpus_sha256: str = field(default="", metadata={JSON_NAME: "gpusSHA256", **_ABSENT})
    action: Action = field(default=Action.POWER_CYCLE, metadata=_ABSENT)

    @property
    def what(self) -> str:
        """What is owed, in words."""
        return "a repair" if self.action is Action.REPAIR else "a power cycle"

    @property
    def to_do(self) -> str:
        """What a person does before he confirms it."""
        if self.action is Action.REPAIR:
            return f"power the machine off and have the hardware that {self.code} names checked or replaced"
        return "power the machine off and on"


@dataclass(frozen=True)
class Status:
    """What the admitter knows. The highest sequence counts for `host_key` alone: another key starts anew.

    `proofs` are the finish times of the newest PASS of each level; `retested` is the `since` of the last ask for a
    retest that was done, `retest_began` when its burn-in was asked for (which may have waited), `confirmed` the `since`
    of the last restore of etcd after which agent or test have spoken. `team` is the one that the node is dedicated to:
    who leads next, and a Node that is made anew, have it from here.
    """

    state: State = State.NEW
    since: str = ""
    code: str = ""
    message: str = ""
    host_key: str = _named("hostKey", "")
    highest_sequence: int = _named("highestSequence", 0)
    highest_report_sha256: str = _named("highestReportSHA256", "")
    accepted: Accepted | None = field(default=None, metadata=_ABSENT)
    last_test: Tested | None = field(default=None, metadata={JSON_NAME: "lastTest", **_ABSENT})
    proofs: Mapping[str, str] = field(default_factory=dict)
    next: Next | None = field(default=None, metadata=_ABSENT)
    request: Request | None = field(default=None, metadata=_ABSENT)
    leave: DrainRequest | None = field(default=None, metadata=_ABSENT)
    use: Use | None = field(default=None, metadata=_ABSENT)
    retested: str = ""
    retest_began: str = field(default="", metadata={JSON_NAME: "retestBegan", **_ABSENT})
    confirmed: str = field(default="", metadata=_ABSENT)
    boot_tests: BootTests | None = field(default=None, metadata={JSON_NAME: "bootTests", **_ABSENT})
    power_cycle: PowerCycle | None = field(default=None, metadata={JSON_NAME: "powerCycle", **_ABSENT})
    team: str = field(default="", metadata=_ABSENT)
    transitions: tuple[Transition, ...] = ()
    fabric: FabricProof | None = field(default=None, metadata=_ABSENT)


@dataclass(frozen=True)
class NodeAdmission:
    """One object. `version` is its resourceVersion, "" for one that is not in the cluster yet."""

    name: str
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)
    version: str = ""
    uid: str = ""


def parse(document: Mapping[str, Any]) -> NodeAdmission:
    """A NodeAdmission as the API server sends it; fields of a newer version are passed over. Raises RecordError."""
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name", ""))
    try:
        return NodeAdmission(
            name=name,
            spec=from_json(Spec, document.get("spec") or {}, tolerant=True),
            status=from_json(Status, document.get("status") or {}, tolerant=True),
            version=str(metadata.get("resourceVersion", "")),
            uid=str(metadata.get("uid", "")),
        )
    except Misfit as error:
        raise RecordError(
            f"{name}: its {KIND} cannot be read ({error}); use a muster of the cluster's version, or bring the "
            f"definition to this one: {DEFINITIONS}"
        ) from error


def spec_document(spec: Spec) -> dict[str, Any]:
    """The spec as the API has it."""
    document: dict[str, Any] = to_json(spec)
    return document


def status_document(status: Status) -> dict[str, Any]:
    """The status as the API has it."""
    document: dict[str, Any] = to_json(status)
    return document


def document(admission: NodeAdmission, names: Names) -> dict[str, Any]:
    """A whole object, to create."""
    return {
        "apiVersion": names.api_version,
        "kind": KIND,
        "metadata": {"name": admission.name},
        "spec": spec_document(admission.spec),
    }
