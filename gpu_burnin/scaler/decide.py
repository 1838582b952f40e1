"""Which machines are switched on and off now, and what the requests are told. Pure: a world and a time in, acts out.

The brakes come first: with one of them nothing is done but looking. Then each machine takes its own next step; then
requests are served, the spare is filled up, and at last what is idle goes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from gpu_burnin.admission.decide.times import LONG_AGO, later, when
from gpu_burnin.api.machine_power import Power
from gpu_burnin.api.record import State
from gpu_burnin.scaler.course import Stage, missed, ready_to_switch_off, stage, steps
from gpu_burnin.scaler.model import Act, Machine, Observe, Plan, Reached, Rules, SetWish, World
from gpu_burnin.scaler.need import Room, for_spare, needs, room
from gpu_burnin.system.host_names import name_hosts

PAUSED, UNREADABLE, IN_DOUBT = "paused", "unreadable", "in_doubt"
# What was done already is recorded, and what is not known is looked up, whatever brakes.
_HARMLESS = (Observe, Reached)


def decide(world: World, rules: Rules, now: datetime) -> Plan:
    """What is done now. Carried out and decided again on what is then, it comes to rest."""
    own = [act for one in world.machines for act in steps(one, rules, now)]
    braked, why = _brake(world, rules)
    if braked:
        return Plan(tuple(act for act in own if isinstance(act, _HARMLESS)), (why,), braked)
    place = room(world.machines, rules, now)
    wanted = needs(world.requests, place, rules, now)
    spared = for_spare(place, rules)
    on, waiting = _by_feeds([*wanted.wishes, *spared], world.machines, rules, now)
    taken_back = {act.machine for act in on}
    own = [act for act in own if getattr(act, "machine", "") not in taken_back]
    off, kept = _idle(world.machines, place, rules, now, frozenset(taken_back) | wanted.claimed)
    acts: list[Act] = [*own, *wanted.answers, *on, *off]
    return Plan(tuple(acts), (*wanted.notes, *waiting, *kept, *_stuck(world.machines, rules, now)))


def doubtful(machines: Iterable[Machine]) -> tuple[int, int]:
    """How many of the nodes that should be at work are in doubt, and how many there are."""
    there = [one for one in machines if missed(one)]
    return sum(one.doubt for one in there), len(there)


def _brake(world: World, rules: Rules) -> tuple[str, str]:
    if world.paused:
        return PAUSED, f"nothing is switched: the fleet is paused {world.paused}"
    if world.unreadable:
        return UNREADABLE, f"nothing is switched: {world.unreadable}"
    doubt, there = doubtful(world.machines)
    if there and doubt > rules.doubt_share * there:
        return IN_DOUBT, (
            f"nothing is switched: {doubt} of {there} nodes that are on are in doubt, more than "
            f"{rules.doubt_share:.0%}; look for what they have in common"
        )
    return "", ""


def _by_feeds(
    wishes: Sequence[SetWish], machines: Sequence[Machine], rules: Rules, now: datetime
) -> tuple[list[SetWish], list[str]]:
    """So many at one feed at a time, with nodes that plays let swing; what the cluster has of both is the lease."""
    known = {one.name: one for one in machines}
    young = [one for one in machines if stage(one) is Stage.STARTING and _wished(one) > later(now, -rules.feed_s)]
    busy = Counter(one.place.feed for one in (*young, *(one for one in machines if one.swings)))
    on: list[SetWish] = []
    late: Counter[str] = Counter()
    for act in wishes:
        one = known[act.machine]
        if one.power is not Power.ON:
            if busy[one.place.feed] >= rules.on_per_feed:
                late[one.place.feed] += 1
                continue
            busy[one.place.feed] += 1
        on.append(act)
    return on, [f"{_at(feed)}: {n} machines wait until {_until(machines, feed)}" for feed, n in late.items()]


def _at(feed: str) -> str:
    return f"feed {feed or '(not named)'}"


def _until(machines: Sequence[Machine], feed: str) -> str:
    swing = sorted(one.name for one in machines if one.swings and one.place.feed == feed)
    return "others have come on" + (f", and the power waves of {name_hosts(swing)} are over" if swing else "")


def _idle(
    machines: Sequence[Machine], place: Room, rules: Rules, now: datetime, claimed: frozenset[str]
) -> tuple[list[SetWish], list[str]]:
    """Those that go: idle for long, needed by nobody, not spare; at most a share of the fleet at a time."""
    on = [one for one in machines if stage(one) not in (Stage.OFF, Stage.UNSEEN)]
    going = sum(stage(one) is Stage.STOPPING for one in machines)
    most = max(1, math.floor(rules.in_share * len(on)))
    spare = Counter(
        one.model for one in machines if _idle_now(one) and one.name not in claimed and place.free.get(one.name)
    )
    due = sorted(
        (one for one in machines if stage(one) is Stage.UP and _may_go(one, rules, now) and one.name not in claimed),
        key=lambda one: (one.idle_since or now, one.name),
    )
    off: list[SetWish] = []
    notes: list[str] = []
    for one in due:
        if spare[one.model] <= rules.spare.get(one.model, 0):
            continue
        if going >= most:
            notes.append(
                f"{len(due) - len(off)} idle nodes wait: {going} of {len(on)} are on their way off, {most} may be"
            )
            break
        spare[one.model] -= 1
        going += 1
        idle_s = (now - (one.idle_since or now)).total_seconds()
        off.append(SetWish(one.name, Power.OFF, f"idle for {idle_s:.0f} s", boot_id=one.boot_id))
    return off, notes


def _idle_now(machine: Machine) -> bool:
    return machine.ready and not machine.used_gpus and not machine.hold


def _may_go(machine: Machine, rules: Rules, now: datetime) -> bool:
    """Whether nothing but its turn keeps it: ready, idle for long, and nobody asks anything of it."""
    if not _idle_now(machine) or machine.state is not State.READY or machine.asked or machine.unheard:
        return False
    return machine.idle_since is not None and now >= later(machine.idle_since, rules.idle_s)


def _stuck(machines: Iterable[Machine], rules: Rules, now: datetime) -> Iterable[str]:
    """What a person may want to know of machines that are not where they should be."""
    for one in machines:
        where = stage(one)
        if where is Stage.HELD:
            yield f"{one.name}: it is held: {one.held}"
        elif where is Stage.ASTRAY and one.power is Power.OFF:
            yield f"{one.name}: it is off, and the scaler has not switched it off; `muster machine hold` keeps it so"
        elif where is Stage.STOPPING and one.hold and (why := ready_to_switch_off(one, rules, now)):
            yield f"{one.name}: it goes off later: {why}"


def _wished(machine: Machine) -> datetime:
    return (when(machine.wish.since) if machine.wish is not None else None) or LONG_AGO
