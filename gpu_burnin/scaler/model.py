"""What the scaler decides on, and what it may do: values between the service, which does all I/O, and decide()."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from gpu_burnin.api.machine_power import Failure, Power, Wish
from gpu_burnin.api.record import Place, State

# The code of a failure: the provider's, the burn-in's, or that of a machine that never came.
POWER_ORDER, SICK, LATE = "POWER", "SICK", "LATE"


@dataclass(frozen=True)
class Rules:
    """The settings that decisions depend on. `spare`: verified idle nodes that are kept, by model.

    A machine has `ready_within_s` from the wish to the label. `on_per_feed` machines are put on in any `feed_s` at one
    feed; nodes that swing there count. At most `in_share` of the powered-on nodes are on their way off, and nothing is
    done while more than `doubt_share` of them are in doubt. What failed `most_failures` times in a row is a person's,
    and what failed once waits `retry_s`. Nodes that were provided for a request are kept for it for `booking_s`.
    """

    idle_s: float = 1800.0
    spare: Mapping[str, int] = field(default_factory=dict)
    ready_within_s: float = 3600.0
    settle_s: float = 15.0
    on_per_feed: int = 4
    feed_s: float = 60.0
    in_share: float = 0.1
    doubt_share: float = 0.5
    most_failures: int = 2
    retry_s: float = 600.0
    booking_s: float = 600.0


@dataclass(frozen=True)
class Machine:
    """A GPU node of the ledger, and its machine. `switched`: it has a MachinePower; all else of power is of that.

    `power` is UNKNOWN while an order may have been given that this leader knows nothing of; `seen_at` is when the
    provider was last asked. `error` is why the last order for the wish of now failed, `blind`: its provider does not
    say whether it is on; `switching`: an order is being carried out. `held` is who keeps the machine from the scaler
    and why, "" for nobody.

    `kubelet`: it reports, and is Ready; `ready`: the node may take work; `admitted`: it was let in, and a test or a
    window may keep work away. `doubt`: it is on and takes none, and neither a person nor a test or window is the
    reason. `asked` is who else asks what of the node, or what is under way there;
    `hold` and `leave` are the scaler's own asks in the ledger: no new work, and what is there leaves.
    `swings`: a play lets it swing its power now. `failed` is the newest run that found something: when it ended, and
    its code. `others` are pods without GPUs that a shutdown would end. `restored_at` is when etcd was put back,
    `unheard`: nobody has spoken for the node since.
    """

    name: str
    model: str = ""
    gpus: int = 0
    place: Place = field(default_factory=Place)
    labels: Mapping[str, str] = field(default_factory=dict)
    switched: bool = True
    power: Power = Power.UNKNOWN
    power_since: datetime | None = None
    seen_at: datetime | None = None
    wish: Wish | None = None
    reached: str = ""
    failures: int = 0
    failure: Failure | None = None
    held: str = ""
    error: str = ""
    blind: bool = False
    switching: bool = False
    there: bool = False
    kubelet: bool = False
    ready: bool = False
    admitted: bool = False
    doubt: bool = False
    boot_id: str = ""
    state: State = State.NEW
    asked: str = ""
    hold: str = ""
    leave: bool = False
    swings: bool = False
    failed: tuple[datetime, str] | None = None
    used_gpus: int = 0
    others: int = 0
    idle_since: datetime | None = None
    restored_at: datetime | None = None
    unheard: bool = False


@dataclass(frozen=True)
class PodSet:
    """So many pods that want so many GPUs each. `selector` are the labels of ours that a node needs.

    `within`: all of them under one value of this label, "" where that does not matter.
    """

    count: int
    gpus: int
    selector: Mapping[str, str] = field(default_factory=dict)
    within: str = ""


class Asked(StrEnum):
    """Where a ProvisioningRequest stands, by its conditions."""

    OPEN = "open"
    PROVISIONED = "provisioned"
    OVER = "over"


@dataclass(frozen=True)
class Request:
    """A ProvisioningRequest of ours. `nodes` are those that Kueue has given its job.

    `message` is what it was last told, `problem` why it cannot be read, "" where it can.
    """

    key: str
    created: datetime
    pod_sets: tuple[PodSet, ...] = ()
    state: Asked = Asked.OPEN
    since: datetime | None = None
    nodes: frozenset[str] = frozenset()
    message: str = ""
    problem: str = ""

    @property
    def pods(self) -> int:
        """Pods with GPUs."""
        return sum(one.count for one in self.pod_sets)


@dataclass(frozen=True)
class World:
    """All that is known. `paused`: who has paused the fleet and why; `unreadable`: why nobody can trust the rest."""

    machines: tuple[Machine, ...] = ()
    requests: tuple[Request, ...] = ()
    paused: str = ""
    unreadable: str = ""


# What is done. Each act is one request to the API server, or one order to a provider; each may be done twice.


@dataclass(frozen=True)
class SetWish:
    """Write what power is wanted, None for nothing: the machine stays as it is. `boot_id` is of the boot before."""

    machine: str
    power: Power | None
    why: str
    request: str = ""
    boot_id: str = ""


@dataclass(frozen=True)
class Observe:
    """Ask the provider whether it is on."""

    machine: str


@dataclass(frozen=True)
class Switch:
    """Order the power that is wanted."""

    machine: str
    power: Power


@dataclass(frozen=True)
class Close:
    """Ask in the ledger that no new work comes; `leave`: that what is there goes, too."""

    machine: str
    why: str
    leave: bool = False


@dataclass(frozen=True)
class Reopen:
    """Take the scaler's asks out of the ledger."""

    machine: str
    why: str


@dataclass(frozen=True)
class Reached:
    """Record that the wish has come true."""

    machine: str
    message: str


@dataclass(frozen=True)
class Failed:
    """Record that it has not; `held`: a person has to look now."""

    machine: str
    code: str
    message: str
    held: bool = False


class Verdict(StrEnum):
    """What a ProvisioningRequest is told."""

    WAIT = "wait"
    PROVISIONED = "provisioned"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Answer:
    """Tell a ProvisioningRequest."""

    request: str
    verdict: Verdict
    reason: str
    message: str


Act: TypeAlias = SetWish | Observe | Switch | Close | Reopen | Reached | Failed | Answer


@dataclass(frozen=True)
class Plan:
    """What is done now, and sentences on what is not and why. `braked`: the code of the brake that holds everything."""

    acts: tuple[Act, ...] = ()
    notes: tuple[str, ...] = ()
    braked: str = ""
