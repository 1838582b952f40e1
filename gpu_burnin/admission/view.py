"""What a decision is made of, and what it consists of: values between the service, which does all I/O, and decide()."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from gpu_burnin.admission.fabric_config import FabricRules
from gpu_burnin.api.agent_note import AgentNote, Maintenance
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.heartbeat import RENEW_S
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission
from gpu_burnin.types import JSON

# A Node as the API server sends it (the service keeps only what decide() reads), and a JSON Patch (RFC 6902).
Node: TypeAlias = Mapping[str, Any]
Patch: TypeAlias = list[dict[str, Any]]


class Budget(StrEnum):
    """What a decision needs a grant for, since too much of it at once would harm the fleet."""

    JOIN = "join"  # lets a node in: so many in any second
    GATE = "gate"  # keeps a working node from work, without a boot or a person asking: a share of the fleet
    EXPIRE = "expire"  # the same for old evidence: at most 5 % of the fleet
    TEST = "test"  # tests an admitted node: nodes at a time, share, hours


@dataclass(frozen=True)
class Evidence:
    """The annotation after signature, node and machine were checked.

    `statement` is what the host signed (also when it is refused for another reason); `hardware` its identity in words
    (GPU UUIDs, serials, VBIOS, driver, kernel), whose hash the statement holds; `code` and `message` are the refusal.
    """

    statement: Statement | None = None
    hardware: Mapping[str, JSON] = field(default_factory=dict)
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on a node. `gpus` is what it requests; `daemon`: a DaemonSet's or a mirror pod, which is never evicted.

    `leave` is what it was told of leaving: the value of its annotation, where the fleet has teams.
    """

    namespace: str
    name: str
    uid: str
    gpus: int = 0
    daemon: bool = False
    ended: bool = False
    leaving: bool = False
    hold_until: str = ""
    owner: str = ""
    leave: str = field(default="", repr=False)


@dataclass(frozen=True)
class HeartbeatState:
    """What the admitter has heard of a node's heartbeat. `boot_id` is the boot that it names, "" where there is none.

    `silent_s`: for how long nothing changed, by the admitter's own clock and only while it listened. `fresh`: this
    leader has seen it change, so that the agent lives; a list alone says only that it lived once.
    """

    boot_id: str = ""
    silent_s: float = 0.0
    fresh: bool = False


@dataclass(frozen=True)
class RuleSeconds:
    """The times that decisions depend on, in seconds, as the admitter's configuration sets them."""

    # The longest that a pod's hold is respected.
    hold_deadline_s: float = 7 * 86400.0
    maintenance_before_s: float = 3600.0
    # How long a request may wait for evidence before the node is in doubt, above the level's own time.
    request_timeout_s: float = 3600.0
    # After the testing taint: pods that a scheduler has placed without seeing it are there by then.
    settle_s: float = 5.0
    # A test that could not be had, since the node was busy, is asked for again after this.
    retry_s: float = 900.0
    # For how long kubelet may offer too few GPUs: a device plugin that starts again offers none for a moment.
    gpus_grace_s: float = 120.0
    # For how long an agent may be silent: five of its heartbeats.
    agent_silent_s: float = 5 * RENEW_S


@dataclass(frozen=True)
class Rules(RuleSeconds):
    """The admitter's settings that decisions depend on. Shares are of the fleet's GPU nodes."""

    names: Names = field(default_factory=Names)
    # Whether a power cycle that a FAIL asked for has to be confirmed before the node is let in again.
    confirm_power_cycle: bool = True
    mode: Mode = Mode.BUILT
    fabric: FabricRules = field(default_factory=FabricRules)


@dataclass(frozen=True)
class View:
    """All that is known of one node. `test` is the level that the schedule wants tested now, "" for none.

    `evidence` is judged against the record's host key; `agent` is None for a node without (readable) note, `heard`
    for one whose agent is of a version that sends no heartbeats.
    `team` is the one that it should be dedicated to ("" for none), None where that is to stay as it is.
    `calendar` are the windows that the inventory names for it. `paused` is why the fleet is paused, "" when it is not.
    """

    name: str
    record: NodeAdmission | None
    node: Node | None
    evidence: Evidence = Evidence()
    agent: AgentNote | None = None
    heartbeat: HeartbeatState | None = None
    pods: tuple[Pod, ...] = ()
    calendar: tuple[Maintenance, ...] = ()
    test: str = ""
    test_why: str = ""
    paused: str = ""
    team: str | None = None
