"""What a roll is about: its order, its waves, its steps and what became of each host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_burnin.fleet.roll.documents import SCHEMA
from gpu_burnin.types import JSON


@dataclass(frozen=True)
class Node:
    """A node that the playbook is for, and its GPU model as the inventory expects it, "" for none."""

    name: str
    model: str = ""


@dataclass(frozen=True)
class Order:
    """What was asked for. A call with the same order goes on with a roll that has not ended.

    `most_failed` is a count ("5") or a share of the nodes tried ("2%"); `arguments` are ansible-playbook's.
    """

    playbook: str
    inventory: tuple[str, ...]
    limit: str = ""
    arguments: tuple[str, ...] = ()
    canary: int = 1
    canary_group: str = ""
    shard_hosts: int = 250
    most_failed: str = "2%"


@dataclass(frozen=True)
class Roll:
    """One roll: waves of shards of hosts. `sha256` is that of the inventory it was made from.

    `canaries` are the models that the first wave tries, by host. `before` are hosts that an earlier call was done with.
    """

    id: str
    started_at: str
    order: Order
    sha256: str
    waves: tuple[tuple[tuple[str, ...], ...], ...]
    canaries: Mapping[str, str]
    before: int = 0
    schema: str = SCHEMA

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in the order of their shards."""
        return tuple(host for wave in self.waves for shard in wave for host in shard)


class Part(StrEnum):
    """What a step does: control plane, first contact with a wave, a shard of its nodes, the wait for admission."""

    CONTROL = "control"
    CONTACT = "contact"
    NODES = "nodes"
    ADMIT = "admit"


@dataclass(frozen=True)
class Step:
    """One run of ansible-playbook. `wave` counts from 1; the control plane's is 0."""

    name: str
    part: Part
    wave: int
    hosts: tuple[str, ...]


class Outcome(StrEnum):
    """What became of a host.

    Held: the playbook did its work, and the node may not take any, which is a result. Left: it did not answer, hung, or
    has work that stands in the way.
    """

    DONE = "done"
    HELD = "held"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True)
class HostResult:
    """One host: how it ended and why; `gate` is what its own gate said, for the step that waits for its admission."""

    outcome: Outcome
    why: str = ""
    gate: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """How a step ended. `error` is why it stops the roll, "" for none.

    `cpu_s` is of all its processes, `peak_bytes` the most memory that one of them had.
    """

    name: str
    rc: int
    wall_s: float
    cpu_s: float
    peak_bytes: int = 0
    hosts: Mapping[str, HostResult] = field(default_factory=dict)
    error: str = ""
    # Where it ran: the name of a worker, "" for the controller.
    worker: str = ""
    # What may still run there, in words.
    warning: str = ""
    schema: str = SCHEMA
