"""What the requests need beyond what is there: who gets which free GPUs, and which machines are put on. Pure.

Requests are served in the order in which they were made, each whole or not at all, and near: whole racks first, as
dedicated nodes are chosen. Of a node only GPUs count here; Kueue and the scheduler see the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpu_burnin.admission.decide.times import LONG_AGO, later, when
from gpu_burnin.admission.teams.places import FleetNode, fullest_first
from gpu_burnin.api.machine_power import Power
from gpu_burnin.api.names import GPU_LABEL, LABEL_PREFIX
from gpu_burnin.scaler.course import Stage, stage
from gpu_burnin.scaler.model import Answer, Asked, Machine, PodSet, Request, Rules, SetWish, Verdict

# How a machine can serve: it takes work now, it is on its way to that, it may be had.
NOW, COMING, TO_HAVE = range(3)


@dataclass
class Room:
    """Free GPUs by machine, and how soon they can be had; requests take from it one after the other."""

    machines: Mapping[str, Machine]
    free: dict[str, int] = field(default_factory=dict)
    soon: dict[str, int] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)

    def take(self, request: Request) -> tuple[dict[str, int], str]:
        """GPUs by machine for all its pods, and "": or nothing, and what is missing."""
        taken: dict[str, int] = defaultdict(int)
        for pods in request.pod_sets:
            chosen, why = self._for(pods, taken)
            if why:
                return {}, why
            for name, gpus in chosen.items():
                taken[name] += gpus
        for name, gpus in taken.items():
            self.free[name] -= gpus
            self.claimed.add(name)
        return dict(taken), ""

    def give(self, request: Request) -> None:
        """The nodes that Kueue has chosen are its own, though not all of its pods may have come yet."""
        least = min((pods.gpus for pods in request.pod_sets), default=0)
        for name in request.nodes & self.free.keys():
            self.claimed.add(name)
            # What has come is counted as used; a node of which a pod takes less than all may have room for others.
            if least >= self.machines[name].gpus:
                self.free[name] = 0

    def _for(self, pods: PodSet, taken: Mapping[str, int]) -> tuple[dict[str, int], str]:
        left = {name: free - taken.get(name, 0) for name, free in self.free.items()}
        fitting = [name for name in left if left[name] >= pods.gpus and _matches(self.machines[name], pods.selector)]
        domains: dict[str, list[str]] = defaultdict(list)
        for name in fitting:
            value = self.machines[name].labels.get(pods.within, "") if pods.within else "all"
            if value:
                domains[value].append(name)
        found = [chosen for _, names in sorted(domains.items()) if (chosen := self._in(names, left, pods)) is not None]
        if not found:
            return {}, _lack(pods, fitting, left, len(domains))
        # The place that needs fewest machines put on, then waits for fewest.
        return min(found, key=lambda one: _cost(one, self.soon)), ""

    def _in(self, names: Sequence[str], left: Mapping[str, int], pods: PodSet) -> dict[str, int] | None:
        chosen: dict[str, int] = {}
        wanted = pods.count
        for name in self._near(names, left):
            if wanted <= 0:
                break
            count = min(wanted, left[name] // pods.gpus)
            chosen[name], wanted = count * pods.gpus, wanted - count
        return chosen if wanted <= 0 else None

    def _near(self, names: Iterable[str], left: Mapping[str, int]) -> list[str]:
        """The soonest first; among those to be had, those that have not failed, and what completes a rack."""
        groups: dict[tuple[int, bool], list[FleetNode]] = defaultdict(list)
        for name in names:
            one = self.machines[name]
            groups[self.soon[name], one.failures > 0].append(FleetNode(name, one.model, left[name], one.place))
        ordered: list[FleetNode] = []
        for key in sorted(groups):
            ordered += fullest_first(ordered, groups[key], sum(node.gpus for node in groups[key]))
        return [node.name for node in ordered]


@dataclass(frozen=True)
class Needs:
    """What is told to whom, which machines should be put on, and those that somebody needs (not to be put off)."""

    answers: tuple[Answer, ...]
    wishes: tuple[SetWish, ...]
    claimed: frozenset[str]
    notes: tuple[str, ...]


def room(machines: Iterable[Machine], rules: Rules, now: datetime) -> Room:
    """What could serve requests."""
    known = {one.name: one for one in machines}
    made = Room(known)
    for name, one in known.items():
        if (soon := _soon(one, rules, now)) is not None and one.gpus > 0:
            made.free[name], made.soon[name] = one.gpus - one.used_gpus, soon
    return made


def needs(requests: Sequence[Request], place: Room, rules: Rules, now: datetime) -> Needs:
    """Serve the requests: those that were provided for keep what they wait for, the others come as they were made."""
    answers: list[Answer] = []
    wishes: list[SetWish] = []
    notes: list[str] = []
    for request in sorted(requests, key=_turn):
        if request.state is Asked.OVER:
            continue
        if request.nodes:
            place.give(request)
            if request.state is Asked.OPEN:
                # It ran before its queue had this check, and a refusal would end it.
                message = f"its job runs already, on {len(request.nodes)} nodes"
                answers.append(Answer(request.key, Verdict.PROVISIONED, "Provisioned", message))
            continue
        if request.state is Asked.PROVISIONED:
            answers += _kept(request, place, rules, now)
            continue
        if request.problem:
            answers.append(Answer(request.key, Verdict.FAILED, "Unreadable", request.problem))
            continue
        taken, lack = place.take(request)
        if lack and (soon := sum(_not_known_yet(one, request) for one in place.machines.values())):
            message = f"{soon} machines are looked at, or on their way off; then it is known who can serve"
            answers += [Answer(request.key, Verdict.WAIT, "Looking", message)] if message != request.message else []
            continue
        if lack:
            answers.append(Answer(request.key, Verdict.FAILED, "NoMachines", lack))
            notes.append(f"{request.key}: {lack}")
            continue
        to_have = [name for name in taken if place.soon[name] == TO_HAVE]
        coming = [name for name in taken if place.soon[name] == COMING]
        if not to_have and not coming:
            message = f"{len(taken)} nodes take work and have room for its {request.pods} pods"
            answers.append(Answer(request.key, Verdict.PROVISIONED, "Provisioned", message))
            continue
        wishes += [_wish(place.machines[name], f"for {request.key}", request.key) for name in to_have]
        message = _progress(len(taken), [*coming, *to_have])
        if message != request.message:
            answers.append(Answer(request.key, Verdict.WAIT, "Starting", message))
    return Needs(tuple(answers), tuple(wishes), frozenset(place.claimed), tuple(notes))


def _turn(request: Request) -> tuple[bool, datetime, str]:
    """Those whose nodes are known come first, then the others as they were made."""
    return (request.state is not Asked.PROVISIONED and not request.nodes, request.created, request.key)


def for_spare(place: Room, rules: Rules) -> list[SetWish]:
    """The machines that are put on so that so many of each model are idle; those on their way count."""
    found: list[SetWish] = []
    for model, least in sorted(rules.spare.items()):
        names = [n for n, one in place.machines.items() if one.model == model and n in place.free]
        whole = [n for n in names if place.free[n] == place.machines[n].gpus]
        there = sum(place.soon[name] != TO_HAVE for name in whole)
        pool = [
            FleetNode(name, model, place.machines[name].gpus, place.machines[name].place)
            for name in whole
            if place.soon[name] == TO_HAVE and not place.machines[name].failures
        ]
        for node in list(fullest_first((), pool, sum(one.gpus for one in pool)))[: max(0, least - there)]:
            why = f"{there} of {least} spare nodes of {model} are idle"
            found.append(_wish(place.machines[node.name], why))
    return found


def _kept(request: Request, place: Room, rules: Rules, now: datetime) -> Iterable[Answer]:
    """What was provided for it is kept for a while, until Kueue has given it nodes."""
    if request.since is not None and now >= later(request.since, rules.booking_s):
        message = f"Kueue has not started its job within {rules.booking_s:.0f} s; its nodes are free for others"
        yield Answer(request.key, Verdict.EXPIRED, "BookingExpired", message)
    else:
        place.take(request)


def _soon(machine: Machine, rules: Rules, now: datetime) -> int | None:
    """How soon it can serve, None for never as far as anybody knows."""
    where = stage(machine)
    if where in (Stage.UP, Stage.FOREIGN):
        if machine.hold and machine.kubelet and not machine.asked:
            return COMING
        return NOW if machine.ready and not machine.asked and not machine.hold else None
    if where is Stage.STARTING:
        return COMING
    if machine.asked:
        return None
    if where is Stage.STOPPING and machine.power is Power.ON and not machine.switching and machine.kubelet:
        # It is on still: its wish is taken back, which is sooner than any boot.
        return TO_HAVE
    if where is not Stage.OFF or machine.switching:
        return None
    failed_at = machine.failure
    waits = (
        machine.failures > 0 and failed_at is not None and now < later(when(failed_at.at) or LONG_AGO, rules.retry_s)
    )
    return None if waits else TO_HAVE


def _not_known_yet(machine: Machine, request: Request) -> bool:
    """Whether it may serve the request in a moment."""
    where = stage(machine)
    soon = (
        (where is Stage.UNSEEN and not machine.blind)
        or (where is Stage.STOPPING and not machine.error)
        # Its provider is asked just now, as it is each few minutes: a request of that moment is not refused for it.
        or (where is Stage.OFF and machine.switching)
    )
    return soon and not machine.asked and any(_matches(machine, pods.selector) for pods in request.pod_sets)


def _wish(machine: Machine, why: str, request: str = "") -> SetWish:
    """One that is on still, and was about to go, needs no new boot."""
    boot_id = "" if stage(machine) is Stage.STOPPING else machine.boot_id
    return SetWish(machine.name, Power.ON, why, request, boot_id)


def _matches(machine: Machine, selector: Mapping[str, str]) -> bool:
    return all(machine.labels.get(key, "") == value for key, value in selector.items())


def _cost(chosen: Mapping[str, int], soon: Mapping[str, int]) -> tuple[int, int, int]:
    kinds = [soon[name] for name in chosen]
    return kinds.count(TO_HAVE), kinds.count(COMING), len(kinds)


def _lack(pods: PodSet, fitting: Sequence[str], left: Mapping[str, int], domains: int) -> str:
    """What there would have to be, in words."""
    model = pods.selector.get(GPU_LABEL, "")
    what = f"{pods.count} pods of {pods.gpus} GPUs{f' of {model}' if model else ''}"
    fit = sum(left[name] // pods.gpus for name in fitting)
    if fit >= pods.count and pods.within:
        level = pods.within.removeprefix(LABEL_PREFIX)
        return f"{what} fit into no one {level} of {domains}; ask for a wider place, or wait"
    return (
        f"{what} are wanted, and machines that take work, that start, and that are off and well have room for {fit}; "
        "see `muster status` for those that are held"
    )


def _progress(all_of_them: int, coming: Sequence[str]) -> str:
    shown = ", ".join(sorted(coming)[:3])
    more = f" and {len(coming) - 3} more" if len(coming) > 3 else ""
    return f"{all_of_them - len(coming)} of {all_of_them} nodes take work; on their way: {shown}{more}"
