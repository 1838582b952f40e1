"""Replacing an etcd member: what is to be done next, from what is there now and never from memory.

A run that was killed looks again and goes on. Standard library only: this runs on the hosts. How etcd treats learners:
https://etcd.io/docs/v3.6/learning/design-learner/.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ansible_collections.muster.fleet.plugins.module_utils.etcd.api import Api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import program_versions

# etcd itself refuses to promote a learner with less than 90 % of the leader's log (server.go, readyPercentThreshold).
CAUGHT_UP_ENTRIES = 500
_INTERVAL_S = 0.1
SETTLE_S = 15.0
# What etcd says of a state that passes: a leader that died a moment ago, a follower that has not reported yet. A new
# member's id is made of its URL and the second (membership/member.go, NewMember): within the second in which one was
# added and removed it is that one's, and the answer is "member not found" (ErrIDRemoved, rpctypes/error.go).
_NOT_YET = {
    "add": ("unhealthy cluster", "member not found"),
    "promote": ("can only promote a learner member which is in sync with leader", "unhealthy cluster"),
}


class Step(StrEnum):
    """What is done next."""

    STOP = "stop"
    REMOVE = "remove"
    CLEAN = "clean"
    PREPARE = "prepare"
    ADD = "add"
    START = "start"
    CATCH_UP = "catch up"
    PROMOTE = "promote"
    FINISH = "finish"
    DONE = "done"


@dataclass(frozen=True)
class Listed:
    """One entry of the member list; `name` is empty while it has never started."""

    id: str
    name: str
    peer_urls: tuple[str, ...]
    learner: bool = False


@dataclass(frozen=True)
class Own:
    """What the member says of itself. `id` is empty without an answer; `applied` counts log entries."""

    id: str = ""
    healthy: bool = False
    applied: int = 0


@dataclass(frozen=True)
class Facts:
    """What is there now. `joining`: the unit starts etcd as a member of a cluster that exists already.

    `behind` is how many log entries the leader is ahead.
    """

    listed: Listed | None
    has_data: bool
    running: bool
    joining: bool
    own: Own = Own()
    behind: int = 0


class Seen(Protocol):
    """What is looked at of the replaced member's machine."""

    def has_data(self) -> bool: ...
    def running(self) -> bool: ...
    def joining(self) -> bool: ...


class Host(Seen, Protocol):
    """The replaced member's machine."""

    def stop(self) -> None: ...
    def clean(self) -> None: ...
    def prepare(self) -> None: ...
    def start(self) -> None: ...
    def finish(self) -> None: ...


def decide(facts: Facts) -> Step:
    """The next step. A voter that is healthy is never touched; a learner's data is of this replacement."""
    if facts.listed is None:
        if facts.running:
            return Step.STOP
        if facts.has_data:
            return Step.CLEAN
        return Step.ADD if facts.joining else Step.PREPARE
    answers = facts.own.id == facts.listed.id
    if facts.listed.learner:
        if not facts.running:
            return Step.START if facts.joining or facts.has_data else Step.PREPARE
        return Step.PROMOTE if answers and facts.behind <= CAUGHT_UP_ENTRIES else Step.CATCH_UP
    if answers and facts.own.healthy:
        return Step.FINISH if facts.joining else Step.DONE
    return Step.STOP if facts.running else Step.REMOVE


def needs_confirmation(facts: Facts) -> bool:
    """Whether what comes next puts data aside that is not of this replacement."""
    return facts.has_data and decide(facts) in (Step.STOP, Step.REMOVE, Step.CLEAN)


@dataclass
class Cluster:
    """The cluster as one member sees it from its host: an Api and a peer URL for each member by name."""

    name: str
    peers: Mapping[str, str]
    apis: Mapping[str, Api]

    @property
    def others(self) -> list[str]:
        """Names of the members that stay."""
        return [name for name in self.peers if name != self.name]

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the first of the members that stay. Raises FleetError."""
        return self.apis[self.others[0]](path, body)

    def listed(self) -> list[Listed]:
        """The member list, agreed on by a majority. Raises FleetError."""
        answer = self.ask("/v3/cluster/member/list", {"linearizable": True})
        return [
            Listed(
                str(one["ID"]),
                str(one.get("name", "")),
                tuple(one.get("peerURLs", ())),
                bool(one.get("isLearner", False)),
            )
            for one in answer.get("members", [])
        ]

    def own(self) -> Own:
        """What the replaced member says; no answer is one too."""
        try:
            status = self.apis[self.name]("/v3/maintenance/status", {})
            health = self.apis[self.name]("/health").get("health") == "true"
        except FleetError:
            return Own()
        return Own(str(status["header"]["member_id"]), health, int(status.get("raftAppliedIndex", 0)))

    def applied(self) -> int:
        """How many log entries the members that stay have applied at least. Raises FleetError."""
        return int(self.ask("/v3/maintenance/status", {}).get("raftAppliedIndex", 0))


def check(
    cluster: Cluster,
    settle_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Listed | None:
    """The replaced member's entry in the member list, None without one. Raises FleetError where nothing may be done.

    The others get `settle_s` to become healthy: while they elect a leader, they are not.
    """
    deadline = clock() + settle_s
    if not cluster.others:
        raise FleetError(
            f"{cluster.name} is the only member of its cluster, and its data is nowhere else; restore a snapshot with "
            "playbooks/etcd_restore.yml"
        )
    while (sick := _sick(cluster)) and clock() < deadline:
        pause(_INTERVAL_S)
    if sick:
        raise FleetError(_not_spared(cluster, sick))
    return entry(cluster, cluster.listed())


def _not_spared(cluster: Cluster, sick: Mapping[str, str]) -> str:
    """Why the member cannot be replaced now; and the way, where the members that are healthy are still a majority."""
    told = ", ".join(f"{name} ({why})" for name, why in sick.items())
    members, healthy = len(cluster.peers), len(cluster.others) - len(sick)
    if 2 * healthy <= members:
        return (
            f"without {cluster.name} the cluster would lose its quorum, since others are not healthy: {told}; repair "
            "those first: the cluster was not changed"
        )
    names = ", ".join(sick)
    return (
        f"{names} must go before {cluster.name} is replaced, since with it the cluster would have no member to spare: "
        f"{told}; {healthy} of {members} members are healthy, so etcd lets one go at a time. Remove {names} with "
        "`etcdctl member remove ID` (`etcdctl member list` has the ID) and take it out of the inventory's group; "
        f"replace {cluster.name}; then put {names} back into the group and replace it too: the cluster was not changed"
    )


def _sick(cluster: Cluster) -> dict[str, str]:
    """Which members that stay are not healthy, and why."""
    said = {}
    for name in cluster.others:
        try:
            answer = cluster.apis[name]("/health")
        except FleetError as error:
            answer = {"reason": str(error)}
        if answer.get("health") != "true":
            said[name] = str(answer.get("reason") or "no reason given")
    return said


def entry(cluster: Cluster, listed: Sequence[Listed]) -> Listed | None:
    """The replaced member's entry. Raises FleetError where the rest of the list is not as the inventory has it."""
    rest = dict.fromkeys(cluster.others)
    ours = []
    for one in listed:
        known = next((name for name, url in cluster.peers.items() if url in one.peer_urls), one.name)
        if known == cluster.name:
            ours.append(one)
        elif known in rest and not one.learner:
            rest.pop(known)
        else:
            raise FleetError(
                f"the member {one.id} ({one.name or 'never started'}, {', '.join(one.peer_urls)}) is "
                f"{'a learner' if one.learner else 'not in the inventory'}; remove it with `etcdctl member remove` or "
                "put its host into the inventory: the cluster was not changed"
            )
    if rest:
        raise FleetError(f"{', '.join(rest)} is in the inventory but no member; replace one host after the other")
    if len(ours) > 1:
        raise FleetError(
            f"{cluster.name} is {len(ours)} members ({', '.join(one.id for one in ours)}); remove the one that never "
            "started with `etcdctl member remove`"
        )
    return ours[0] if ours else None


def observe(cluster: Cluster, host: Seen) -> Facts:
    """The facts now. Raises FleetError."""
    listed = entry(cluster, cluster.listed())
    running = host.running()
    own = cluster.own() if running else Own()
    return Facts(
        listed, host.has_data(), running, host.joining(), own, max(0, cluster.applied() - own.applied) if own.id else 0
    )


def settled(
    cluster: Cluster,
    host: Seen,
    settle_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Facts:
    """The facts of now; a running voter that is not healthy gets time to become so. Raises FleetError."""
    deadline = clock() + settle_s
    while True:
        facts = observe(cluster, host)
        voter = facts.listed is not None and not facts.listed.learner
        if decide(facts) is not Step.STOP or not voter or clock() >= deadline:
            return facts
        pause(_INTERVAL_S)


def check_data(cluster: Cluster, host: Seen, settle_s: float, *, confirmed: bool) -> None:
    """See that no data would be put aside that nobody gave up. Raises FleetError."""
    if host.has_data() and not confirmed:
        _refuse_data(cluster.name, settled(cluster, host, settle_s))


def _refuse_data(name: str, facts: Facts) -> None:
    if needs_confirmation(facts):
        raise FleetError(
            f"{name} has data and is not healthy; start etcd there, or give up what it has with -e confirm={name}, "
            "which puts it aside: neither it nor the cluster was changed"
        )


def check_release(cluster: Cluster, version: str) -> None:
    """See that the etcd that the member gets is of the minor of one that stays. Raises FleetError.

    An older one cannot read the data of the others, and a newer one is an upgrade.
    """
    build = program_versions.parse(version)
    if build is None:
        raise FleetError(
            f"the etcd of kube_binaries_checksums for {cluster.name} does not say its version; name the build that the "
            "members that stay run: nothing was changed"
        )
    stay = {name: str(cluster.apis[name]("/version").get("etcdserver", "")) for name in cluster.others}
    releases = {known.release for text in stay.values() if (known := program_versions.parse(text))}
    if build.release not in releases:
        raise FleetError(
            f"kube_binaries_checksums names etcd {build} for {cluster.name}, and the members that stay run another "
            f"minor ({', '.join(f'{name} {text}' for name, text in stay.items())}); name the build that they run, and "
            "after the replacement upgrade all with playbooks/upgrade.yml: nothing was changed"
        )


@dataclass
class Replacement:
    """One run. `timeout_s` is for each thing that is waited for, `settle_s` for members that may just be starting."""

    cluster: Cluster
    host: Host
    confirmed: bool
    timeout_s: float
    settle_s: float = SETTLE_S
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    # Told of each step before it is done.
    tell: Callable[[Step], None] = lambda _: None

    def run(self) -> list[Step]:
        """All steps that were left. Raises FleetError."""
        check(self.cluster, self.settle_s, self.clock, self.pause)
        done: list[Step] = []
        deadline = self.clock() + self.timeout_s
        while (step := decide(facts := self._facts())) is not Step.DONE:
            if not self.confirmed:
                _refuse_data(self.cluster.name, facts)
            if not done or step is not done[-1]:
                self.tell(step)
                done.append(step)
                deadline = self.clock() + self.timeout_s
            elif self.clock() >= deadline:
                raise FleetError(self._stuck(facts, step))
            self._do(step, facts, deadline)
        return done

    def _facts(self) -> Facts:
        return settled(self.cluster, self.host, self.settle_s, self.clock, self.pause)

    def _stuck(self, facts: Facts, step: Step) -> str:
        said = f"it is {facts.behind} log entries behind" if facts.own.id else "it does not answer"
        member = facts.listed.id if facts.listed else ""
        return (
            f"{self.cluster.name} cannot do the step '{step}' in {self.timeout_s:g} s: {said}; "
            "see `journalctl -u etcd` there and run again. Where its data is spoilt, first "
            f"`etcdctl member remove {int(member or 0):x}`, which costs nothing while it is a learner, and give "
            f"-e confirm={self.cluster.name}"
        )

    def _do(self, step: Step, facts: Facts, deadline: float) -> None:
        member = {"ID": facts.listed.id} if facts.listed else {}
        if step is Step.CATCH_UP:
            self.pause(_INTERVAL_S)
        elif step is Step.REMOVE:
            self.cluster.ask("/v3/cluster/member/remove", member)
        elif step is Step.ADD:
            new = {"peerURLs": [self.cluster.peers[self.cluster.name]], "isLearner": True}
            self._until("add", new, deadline)
        elif step is Step.PROMOTE:
            self._until("promote", member, deadline)
        else:
            actions: dict[Step, Callable[[], None]] = {
                Step.STOP: self.host.stop, Step.CLEAN: self.host.clean, Step.PREPARE: self.host.prepare,
                Step.START: self.host.start, Step.FINISH: self.host.finish,
            }  # fmt: skip
            actions[step]()

    def _until(self, what: str, body: Mapping[str, Any], deadline: float) -> None:
        """Ask until etcd's reason to refuse has passed. Raises FleetError at once for any other reason."""
        while True:
            try:
                self.cluster.ask(f"/v3/cluster/member/{what}", body)
                return
            except FleetError as error:
                if not any(words in str(error) for words in _NOT_YET[what]) or self.clock() >= deadline:
                    raise
            self.pause(_INTERVAL_S)
