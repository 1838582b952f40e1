"""Whether a job may start on the nodes that Kueue chose for it. Pure.

Ready: all of them are open in the ledger, proven as the queue asks, and free of maintenance for as long as the job
runs. Pending: what is in the way heals by itself before the time to wait is over. Retry: Kueue gives the nodes back and
chooses anew. Rejected, which ends a job for good, is never the answer: all that is looked at here may heal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpu_burnin.admission.calendar import Window
from gpu_burnin.admission.calendar import windows as calendar_windows
from gpu_burnin.admission.decide.facts import rank
from gpu_burnin.admission.decide.times import earliest, later, stamp, when
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.admission.jobs.workload import CheckState, Workload
from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.jobs import HOSTNAME
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.maintenance import NONE, UNKNOWN, active
from gpu_burnin.api.record import State
from gpu_burnin.system.quantities import duration

# A run of a level takes its own time, and this much until it begins and its evidence is read.
TEST_MARGIN_S = 60.0
# How long Kueue leaves a workload alone after a Retry: doubled each time, so that others have the nodes meanwhile.
FIRST_BACK_OFF_S, MOST_BACK_OFF_S = 5, 600
# Time alone changes what is decided; whatever is not foreseen is seen after this.
LOOK_AGAIN_S = 30.0
_OPEN = frozenset({State.READY, State.EXPIRING})
# What ends without a person: a test, or a word of the node's agent.
_HEALING = frozenset({State.NEW, State.TESTING, State.SUSPECT})


class Reason(StrEnum):
    """Why a check is as it is, for metrics and journal."""

    VERIFIED = "VERIFIED"
    NO_GPUS = "NO_GPUS"
    NO_NODES = "NO_NODES"
    NODES_LATER = "NODES_LATER"
    TOPOLOGY = "TOPOLOGY"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    UNJUDGED_NODE = "UNJUDGED_NODE"
    NODE_STATE = "NODE_STATE"
    NODE_CLOSED = "NODE_CLOSED"
    OTHER_TEAM = "OTHER_TEAM"
    MAINTENANCE = "MAINTENANCE"
    PROOF_LEVEL = "PROOF_LEVEL"
    PROOF_AGE = "PROOF_AGE"
    FABRIC_AGE = "FABRIC_AGE"
    BRAKE = "BRAKE"
    STALE = "STALE"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is asked of one node. `taints` are ours but for the team's, whose value is `team`.

    `labelled`: it carries the label of a node that may take work. `test` is the level of a test that was asked for, ""
    for none, and `tested_until` when it should have an answer. `announced` is what its agent says of maintenance.
    `judged`: the admitter has decided on all that it has heard of the node. `fabric_at` is when it last passed a test
    with another node in this boot; without NICs (`has_nics`) it can be in none.
    """

    state: State
    code: str = ""
    message: str = ""
    registered: bool = True
    labelled: bool = True
    taints: tuple[str, ...] = ()
    team: str = ""
    proofs: Mapping[str, str] | None = None
    max_age_s: float = 0.0
    test: str = ""
    tested_until: datetime | None = None
    idle: bool = True
    announced: Maintenance | None = None
    judged: bool = True
    fabric_at: datetime | None = None
    has_nics: bool = False


@dataclass(frozen=True)
class Demand:
    """What the queue and the configuration ask. `tests_open`: tests may be asked for now.

    `gang_age_s` is how long a pass with another node counts, None where none is asked for.
    """

    level: str = "standard"
    window_s: float = 3600.0
    wait_s: float = 600.0
    tests_open: bool = True
    gang_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why one node cannot take the job now. `heals`: without a person, before the time to wait is over.

    `test` is the level of a test that would help, "" for none; `gang`: one with another node would.
    """

    node: str
    reason: Reason
    words: str
    heals: bool = False
    test: str = ""
    gang: bool = False


# What is told of a job whose nodes are chosen when all checks are Ready: they are judged then.
NODES_LATER = "Kueue chooses its nodes when all checks are Ready, and they are judged then"


@dataclass(frozen=True)
class Verdict:
    """The answer. `why` is what is in the way, in `message` too; `node` the first of the nodes that are.

    `tests` are nodes with the level that they lack, `gang` those that lack a test with another node; `wake_at` is when
    time alone may change the verdict.
    """

    state: CheckState
    reason: Reason
    message: str
    why: str = ""
    node: str = ""
    tests: tuple[tuple[str, str], ...] = ()
    wake_at: datetime | None = None
    gang: tuple[str, ...] = ()


def decide(
    workload: Workload,
    nodes: Mapping[str, NodeFacts],
    calendar: Sequence[Window],
    demand: Demand,
    now: datetime,
    runs_s: float | None = None,
) -> Verdict:
    """The verdict on a Workload that has a reservation. `nodes` has those of its nodes that the ledger knows.

    `runs_s` is how long the job says that it runs, None where it does not.
    """
    if (early := _without_nodes(workload)) is not None:
        return early
    deadline = later(min(workload.reserved_at or now, now), demand.wait_s)
    blockers = blockers_of(workload, nodes, calendar, demand, now, deadline, runs_s)
    total = f"all {len(workload.nodes)} nodes are" if len(workload.nodes) > 1 else "its node is"
    if not blockers:
        between = " and a fresh pass with another node" if demand.gang_age_s is not None else ""
        message = f"{total} open, with proof of level {demand.level} or more{between}"
        return Verdict(CheckState.READY, Reason.VERIFIED, message, wake_at=later(now, LOOK_AGAIN_S))
    first = min(blockers, key=lambda one: (one.heals, one.node))
    more = f" and {len(blockers) - 1} more of its {len(workload.nodes)} nodes" if len(blockers) > 1 else ""
    tests = tuple((one.node, one.test) for one in blockers if one.test)
    gang = tuple(one.node for one in blockers if one.gang)
    what = f"{first.node}{more}: {sentence(first.words, 200)}"
    if first.heals and now < deadline:
        message = f"waits for {what}; nodes are chosen again at {stamp(deadline)} at the latest"
        wake_at = earliest(deadline, later(now, LOOK_AGAIN_S))
        return Verdict(CheckState.PENDING, first.reason, message, what, first.node, tests, wake_at, gang)
    waited = f", after {duration(demand.wait_s)}" if first.heals else ""
    message = f"nodes are chosen again{waited}, because of {what}"
    return Verdict(CheckState.RETRY, first.reason, message, what, first.node, tests)


def blockers_of(
    workload: Workload,
    nodes: Mapping[str, NodeFacts],
    calendar: Sequence[Window],
    demand: Demand,
    now: datetime,
    deadline: datetime,
    runs_s: float | None = None,
    only: Collection[str] | None = None,
) -> list[Blocker]:
    """Why its nodes (or those of `only`) cannot take it, at most one for each: what does not heal before what does."""
    asked = _Asked(workload, calendar, demand, now, deadline, needed_s(workload, demand, runs_s))
    chosen = workload.nodes if only is None else tuple(name for name in workload.nodes if name in only)
    found = (min(asked.blockers(name, nodes.get(name)), key=lambda one: one.heals, default=None) for name in chosen)
    return [one for one in found if one is not None]


def needed_s(workload: Workload, demand: Demand, runs_s: float | None) -> float:
    """For how long no maintenance may begin: as the job says, or Kueue, which ends it then, or the configuration."""
    said_s = runs_s if runs_s is not None else workload.most_s
    return demand.window_s if said_s is None else said_s


def runtime_matters(
    workload: Workload, nodes: Mapping[str, NodeFacts], calendar: Sequence[Window], now: datetime
) -> bool:
    """Whether a window is known of any of its nodes, so that it counts how long the job runs."""
    if any(one.not_after > now and (one.nodes is None or not one.nodes.isdisjoint(workload.nodes)) for one in calendar):
        return True
    announced = (nodes[name].announced for name in workload.nodes if name in nodes)
    return any(one is not None and one.state not in (NONE, UNKNOWN) for one in announced)


def unproven(node: NodeFacts, level: str, now: datetime) -> tuple[Reason, str] | None:
    """What a node lacks of proof of this level or a higher one; None where it has it."""
    times = (when(text) for of, text in (node.proofs or {}).items() if rank(of) >= rank(level))
    proven = max((time for time in times if time is not None), default=None)
    if proven is None:
        return Reason.PROOF_LEVEL, f"it has no proof of level {level}"
    age_s = (now - proven).total_seconds()
    if age_s <= node.max_age_s:
        return None
    asked = f"{duration(node.max_age_s)} at most is asked"
    return Reason.PROOF_AGE, f"its proof of level {level} is {duration(age_s)} old, {asked}"


def back_off_s(retries: int) -> int:
    """How long Kueue should leave a job alone after one more Retry."""
    return int(min(MOST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(max(retries, 0), 16)))


def _without_nodes(workload: Workload) -> Verdict | None:
    """The verdict on a job of which no nodes are to be judged, None where there are some."""
    if not workload.gpus:
        return Verdict(CheckState.READY, Reason.NO_GPUS, "it asks for no GPUs, so no proof is asked of its nodes")
    if workload.delayed:
        return Verdict(CheckState.READY, Reason.NODES_LATER, NODES_LATER)
    if workload.level:
        why = (
            f"its Topology, whose last level is {workload.level}, which names no nodes: give it the last level "
            f"{HOSTNAME} (site.yml does)"
        )
        return Verdict(CheckState.RETRY, Reason.TOPOLOGY, f"nodes are chosen again, because of {why}", why)
    if not workload.nodes:
        return Verdict(
            CheckState.READY, Reason.NO_NODES, "its flavor has no Topology, so no nodes were chosen to judge"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question, the same for all nodes of a job."""

    workload: Workload
    calendar: Sequence[Window]
    demand: Demand
    now: datetime
    deadline: datetime
    needed_s: float

    def blockers(self, name: str, node: NodeFacts | None) -> Iterator[Blocker]:
        """Why this node cannot take the job; nothing where it can."""
        if node is None:
            words = "it has no NodeAdmission that can be read: nobody vouches for it; `muster why NODE` says what to do"
            yield Blocker(name, Reason.UNKNOWN_NODE, words)
            return
        if not node.judged:
            yield Blocker(name, Reason.UNJUDGED_NODE, "the admitter has not judged yet what it has heard of it", True)
            return
        if not node.registered:
            yield Blocker(name, Reason.UNKNOWN_NODE, "its kubelet has not registered it")
        if node.state not in _OPEN:
            yield Blocker(name, Reason.NODE_STATE, _state_words(node), heals=self._state_heals(node))
        elif node.taints or not node.labelled:
            words = f"its Node has the taint {node.taints[0]}" if node.taints else "its Node is not labelled as ready"
            yield Blocker(name, Reason.NODE_CLOSED, words, heals=self._in_time(node.tested_until))
        if node.team and node.team != self.workload.queue:
            yield Blocker(name, Reason.OTHER_TEAM, f"it is dedicated to the team {node.team}")
        if why := self._maintenance(name, node):
            yield Blocker(name, Reason.MAINTENANCE, why)
        if node.state in _OPEN:
            yield from self._unproven(name, node)
            yield from self._untested_between(name, node)

    def _state_heals(self, node: NodeFacts) -> bool:
        return node.state in _HEALING and self._in_time(node.tested_until)

    def _in_time(self, until: datetime | None) -> bool:
        """Whether what ends then ends before the time to wait is over; what has no end known may."""
        return until is None or until <= self.deadline

    def _maintenance(self, name: str, node: NodeFacts) -> str:
        """The window that begins before the job would be over, "" for none. Unknown windows hold no job."""
        windows = (node.announced, *calendar_windows(self.calendar, name, self.now))
        return next((why for one in windows if (why := active(one, self.now, self.needed_s))), "")

    def _unproven(self, name: str, node: NodeFacts) -> Iterator[Blocker]:
        level, found = self.demand.level, unproven(node, self.demand.level, self.now)
        if found is None:
            return
        reason, words = found
        begun = rank(node.test) >= rank(level)
        may_begin = node.idle and self.demand.tests_open
        until = node.tested_until if begun else test_end(level, self.now) if may_begin else None
        heals = begun or may_begin
        yield Blocker(name, reason, f"{words}; a test is asked for", heals and self._in_time(until), level)

    def _untested_between(self, name: str, node: NodeFacts) -> Iterator[Blocker]:
        """That it has not passed with another node lately: its job holds it idle, so that it can be tested now."""
        if self.demand.gang_age_s is None:
            return
        age_s = (self.now - node.fabric_at).total_seconds() if node.fabric_at is not None else None
        if age_s is not None and age_s <= self.demand.gang_age_s:
            return
        if age_s is None:
            words = "it has passed no test with another node in this boot, or one failed since"
        else:
            asked = f"{duration(self.demand.gang_age_s)} at most is asked"
            words = f"its last pass with another node is {duration(age_s)} old, {asked}"
        if not node.has_nics:
            words = f"{words}, and its NodeAdmission names no NIC for one (fleet_fabric_nics)"
            yield Blocker(name, Reason.FABRIC_AGE, words)
            return
        yield Blocker(name, Reason.FABRIC_AGE, f"{words}; such a test is asked for", node.idle, gang=node.idle)


def test_end(level: str, begun: datetime) -> datetime | None:
    """When a test of this level should have an answer; None for a level that is none."""
    return later(begun, LEVELS[level].total_s + TEST_MARGIN_S) if level in LEVELS else None


def _state_words(node: NodeFacts) -> str:
    code = f" ({node.code})" if node.code else ""
    return f"{node.state}{code}{f': {node.message}' if node.message else ''}"
